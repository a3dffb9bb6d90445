"""What serving needs beside attention: writing a paged cache, merging partial results, checking what a scheduler made.

None of it depends on the variant.
"""

from flashgen.runtime.merging import merge_states as merge_states
from flashgen.runtime.serving_checks import check as check
from flashgen.runtime.serving_checks import check_varlen as check_varlen
from flashgen.runtime.storing import store_kv as store_kv

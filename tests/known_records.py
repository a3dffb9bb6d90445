"""A tuned record, and the key of it."""

from flashgen.runtime.config import Config
from flashgen.runtime.records import Bucket, Key, Record

KEY = Key(
    "NVIDIA H200", "sm_90", "3.6", "alibi", "forward", "bfloat16", 128, 128, Bucket.of(32, 1, 8192, 8192), "spec",
    "templates",
)  # fmt: skip
RECORD = Record(KEY, Config(128, 64, 8, 3), 800.0, 0.01, 20, measured_at="2025-01-02T00:00:00+00:00")

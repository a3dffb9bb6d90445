"""Specs: what users write, and what it means."""

from flashgen.spec.digest import digest
from flashgen.spec.load import load
from flashgen.spec.schema import json_schema
from flashgen.spec.variant import Variant

__all__ = ["Variant", "digest", "json_schema", "load"]

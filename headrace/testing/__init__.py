"""Public helpers for tests: the stage laws, a local Hub, makers of small real datasets."""

from headrace.testing.hub import LocalHub
from headrace.testing.laws import check_laws
from headrace.testing.makers import is_whole, ledger_row, write_jsonl, write_parquet, write_txt

__all__ = ["LocalHub", "check_laws", "is_whole", "ledger_row", "write_jsonl", "write_parquet", "write_txt"]

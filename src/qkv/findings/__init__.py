"""Findings: measured effects of edits on a model, as files that others can verify."""

from qkv.findings._finding_files import schema
from qkv.findings.measured import Finding, Verification, finding, publish

__all__ = ["Finding", "Verification", "finding", "publish", "schema"]

"""Findings: something seen in a model, measured, as a file that can be sent and checked."""

from qkv.findings.finding_files import schema
from qkv.findings.measured import Finding, Verification, finding, publish

__all__ = ["Finding", "Verification", "finding", "publish", "schema"]

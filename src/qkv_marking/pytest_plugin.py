"""A pytest plugin that creates a test for each feature of your attention function.

    @pytest.mark.conform(my_attention, dtypes=["float32"])
    def test_my_attention(conformance):
        assert conformance

Tests of refused or absent features are skipped. pytest imports this module in every environment
that contains qkv, so the import must be fast: `qkv.conform` is imported when the first test runs.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qkv_marking.conformance.report import Report


class Feature:
    """The value of the fixture `conformance`: the result for one feature of a function.

    `bool(feature)` is true if the feature's status is "right" or "fragile".

    Args:
        report: the whole card.
        name: the name of the feature.
    """

    def __init__(self, report: "Report", name: str) -> None:
        self.report, self.name = report, name

    @property
    def status(self) -> str:
        """The status: right, wrong, fragile, refused or absent."""
        return self.report.features[self.name]

    def __bool__(self) -> bool:
        return self.status in ("right", "fragile")

    def __repr__(self) -> str:
        lines = [f"{self.name}: {self.status}, {self.report.remark(self.name)}"]
        return "\n".join([*lines, *self.report.details(self.name)])


def pytest_configure(config: Any) -> None:
    """Register the mark `pytest.mark.conform` and the fixture `conformance`."""
    config.addinivalue_line(
        "markers",
        "conform(function, **options): the fixture `conformance` passes these arguments to "
        "qkv.conform",
    )
    config.pluginmanager.register(_fixtures(), "qkv-conformance")


def pytest_generate_tests(metafunc: Any) -> None:
    """Create one test per feature."""
    if "conformance" in metafunc.fixturenames:
        from qkv_marking.conformance.read_cases import FEATURES

        marker = metafunc.definition.get_closest_marker("conform")
        chosen = marker and marker.kwargs.get("features")
        names = [name for name in FEATURES if chosen is None or name in chosen]
        metafunc.parametrize("conformance", names, indirect=True, scope="function")


def _fixtures() -> Any:
    import pytest

    reports: dict[int, Report] = {}

    class Fixtures:
        @pytest.fixture
        def conformance(self, request: Any) -> Feature:
            """Return the tested feature of the function in `@pytest.mark.conform(function)`."""
            marker = request.node.get_closest_marker("conform")
            if marker is None:
                pytest.fail(
                    "conformance: the test has no marker: write @pytest.mark.conform(my_attention)"
                )
            if id(marker) not in reports:
                from qkv_marking.conformance.card import conform

                reports[id(marker)] = conform(*marker.args, **marker.kwargs)
            feature = Feature(reports[id(marker)], request.param)
            if feature.status in ("refused", "absent"):
                pytest.skip(f"{feature.status} {feature.report.remark(feature.name)}".strip())
            return feature

    return Fixtures()

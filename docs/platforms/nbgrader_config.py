"""Settings of nbgrader for the course: `nbgrader generate_assignment 3-one-function`."""

from nbgrader import preprocessors
from nbgrader.preprocessors import NbGraderPreprocessor


class PutStubs(NbGraderPreprocessor):
    """Replace each solution by the cell that students fill in."""

    def preprocess_cell(self, cell, resources, index):
        """Replace the source of a cell if its metadata holds the students' version."""
        if "qkv_stub" in cell.metadata:
            cell.source = cell.metadata.pop("qkv_stub")
        return cell, resources


c = get_config()  # noqa: F821 (nbgrader defines this function)
c.CourseDirectory.course_id = "qkv"
c.GenerateAssignment.preprocessors = [
    preprocessors.IncludeHeaderFooter,
    preprocessors.LockCells,
    PutStubs,
    preprocessors.ClearOutput,
    preprocessors.CheckCellMetadata,
    preprocessors.ComputeChecksums,
    preprocessors.SaveCells,
    preprocessors.ClearHiddenTests,
    preprocessors.ComputeChecksums,
    preprocessors.CheckCellMetadata,
]
c.Execute.timeout = 900  # seconds for a cell: some lessons train a model

"""TensorBoard: event files in the run folder, written by PyTorch."""

import shutil
from typing import Any

from pe_lab.core.tracker import UNCHARTED, TrackedRun, Tracker, closing_row, with_mean_ood


class TensorBoardTracker(Tracker):
    """TensorBoard: scalars over ``step``, at the end the configuration with the final numbers.

    The event files of a resumed run are written anew from metrics.jsonl, as those of a killed
    process may lack rows.
    """

    name = "TensorBoard"

    def start(self, run: TrackedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = run.folder / "tensorboard"
        if folder.exists():
            shutil.rmtree(folder)
        self._config, self._splits = run.config, run.splits
        self._writer = SummaryWriter(str(folder))
        for row in run.rows:
            self.log(row)
        self._writer.flush()

    def log(self, row: dict[str, Any]) -> None:
        for key, value in with_mean_ood(row, self._splits).items():
            if value is not None and key != "step" and not key.endswith(UNCHARTED):
                self._writer.add_scalar(key, value, row["step"])

    def finish(self, summary: dict[str, Any] | None, exit_code: int) -> None:
        if summary is not None:
            _, numbers = closing_row(summary)
            charted = {
                key: value
                for key, value in numbers.items()
                if not key.endswith(UNCHARTED) and not isinstance(value, str)
            }
            # "." is this run's folder; the default is another run beside it.
            self._writer.add_hparams(
                _scalars(self._config), charted, run_name=".", global_step=summary["steps"]
            )
        self._writer.close()

    def remedy(self, error: BaseException) -> str:
        if isinstance(error, ImportError):
            return "pip install 'pe-lab[tensorboard]', or set tracker=none"
        return super().remedy(error)


def _scalars(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """The numbers, words and truth values of a configuration by their dotted keys."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            found |= _scalars(value, f"{prefix}{key}.")
        elif isinstance(value, (bool, int, float, str)):
            found[prefix + key] = value
    return found

"""ParamsFile: the event file with the parameters of a run, for TensorBoard's HParams dashboard."""

from collections.abc import Mapping

from trieye.files.atomic import write_atomic
from trieye.sinks.base import RunInfo
from trieye.sinks.tensorboard.files import frame
from trieye.sinks.tensorboard.summaries import header, params_in, session_start

FILE_NAME = "events.out.tfevents.0000000000.trieye.hparams"
"""TensorBoard uses the first parameters that it reads, and this name sorts before all other event files."""


class ParamsFile:
    """The parameters of a run in a separate event file, which is replaced when one changes.

    Args:
        run: The run.
    """

    def __init__(self, run: RunInfo) -> None:
        self._run, self._path = run, run.tensorboard_dir / FILE_NAME
        self._params = params_in(self._path) if self._path.exists() else {}
        self._is_saved = True

    def update(self, params: Mapping[str, str]) -> None:
        """Set parameters, overwriting earlier values; the next `save` writes them to the file."""
        self._is_saved &= {**self._params, **params} == self._params
        self._params.update(params)

    def save(self) -> None:
        """Rewrite the file if a parameter has changed.

        Raises:
            OSError: The file cannot be written.
        """
        if not self._is_saved:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(self._path, frame([*header(restarted=False), *session_start(self._params, self._run)]))
            self._is_saved = True

    def clear(self) -> None:
        """Discard the parameters, and remove the file."""
        self._path.unlink(missing_ok=True)
        self._params, self._is_saved = {}, True

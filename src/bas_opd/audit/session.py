"""The audit of a run as a user asks for it: existing parts are kept, missing ones are made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bas_opd import disk
from bas_opd.audit.geometry import audit_geometry, chosen_checkpoints, why_no_geometry
from bas_opd.audit.records import (
    Audit,
    GeometryAudit,
    Source,
    UtilityAudit,
    geometry_file,
    read_audit,
    utility_file,
    write_audit,
)
from bas_opd.audit.scoring import audit_utility
from bas_opd.audit.subject import Request, Subject
from bas_opd.errors import DataError, PreemptionError
from bas_opd.run.lock import NAME as OWNER
from bas_opd.run.lock import locked
from bas_opd.run.manifest import published, step_of
from bas_opd.run.progress import Progress
from bas_opd.run.stopping import StopFlag
from bas_opd.types import Hooks


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The results of an audit."""

    utility: tuple[UtilityAudit, ...] = ()
    geometry: GeometryAudit | None = None
    no_geometry: str | None = None
    """Why the run has no gradients to compare, if it has none."""


def audit_run(request: Request, progress: Progress) -> Outcome:
    """Make the requested audits; each is written as soon as it is done."""
    stop = StopFlag()
    subject = Subject(request, Hooks(poll=stop.poll, notice=progress.message))
    try:
        with stop.listening(), closing(subject):
            return _audits(subject, progress)
    except PreemptionError as error:
        raise PreemptionError(
            f"The audit of {request.run} was stopped by {error}. Finished parts are in "
            f"{geometry_file(request.run).parent}; rerun the same command to resume."
        ) from error


def _audits(subject: Subject, progress: Progress) -> Outcome:
    request = subject.request
    utility: list[UtilityAudit] = []
    if request.only != "geometry":
        utility.append(_utility(subject, progress, None))
        if request.held_out is not None:
            utility.append(_utility(subject, progress, request.held_out))
    if request.only == "utility":
        return Outcome(utility=tuple(utility))
    obstacle = why_no_geometry(subject)
    if obstacle is not None and request.only is None:
        return Outcome(utility=tuple(utility), no_geometry=obstacle)
    return Outcome(utility=tuple(utility), geometry=_geometry(subject, progress))


def _utility(subject: Subject, progress: Progress, held_out: Path | None) -> UtilityAudit:
    source: Source = "training" if held_out is None else "held-out"
    path = utility_file(subject.run, source, subject.teacher)
    dataset = subject.identity.dataset.fingerprint
    if held_out is not None:
        dataset = subject.dataset(held_out).fingerprint
    checkpoints = published(subject.directory.checkpoints)
    newest = step_of(checkpoints[0]) if checkpoints else subject.identity.steps
    found = _found(path, UtilityAudit, subject)
    if (
        found is not None
        and (found.dataset, found.step) == (dataset, newest)
        and max(each.batch for each in found.candidates) == subject.request.batches - 1
    ):
        return found
    with _writing(path.parent):
        return write_audit(path, audit_utility(subject, progress, held_out=held_out))


def _geometry(subject: Subject, progress: Progress) -> GeometryAudit:
    path = geometry_file(subject.run, subject.teacher)
    pairs = subject.request.pairs
    wanted = [(step_of(each), pairs) for each in chosen_checkpoints(subject)]
    found = _found(path, GeometryAudit, subject)
    if found and [(each.step, len(each.pairs)) for each in found.checkpoints] == wanted:
        return found
    with _writing(path.parent):
        return write_audit(path, audit_geometry(subject, progress))


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Lock the folder of audits, so that the run is not overwritten meanwhile."""
    disk.make_folder(folder, exist_ok=True)
    with locked(folder, otherwise="audit another run"):
        try:
            yield
        finally:
            disk.unlink(folder / OWNER)
            with suppress(OSError):  # it holds audits
                disk.remove_folder(folder)


def _found(path: Path, kind: type[Audit], subject: Subject) -> Audit | None:
    """Return the audit of this run by this teacher, if there is a readable one."""
    try:
        audit = read_audit(path, kind)
    except DataError:
        return None  # It is made again, as its message asks for.
    mine = (subject.identity.config_hash, subject.teacher)
    if audit is None or (audit.config_hash, audit.teacher) != mine:
        return None
    # Older ones do not say whether the run covers.
    return audit.model_copy(update={"coverage": subject.config.select.coverage})

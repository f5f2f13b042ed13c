"""What Optuna keeps: enough for another process to go on, or to join; on real journals and databases."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import optuna
import pytest

from autoaccum.errors import UsageError
from autoaccum.records import PLAIN, Knobs
from autoaccum.tuning.proposals import Seen
from autoaccum.tuning.results import Duel, Fate, Measurement
from autoaccum.tuning.space import Candidate, Space
from autoaccum.tuning.storage import open_storage
from autoaccum.tuning.study import Handle, Study
from tests.tuning import space_of

SPACE = space_of(64, {"optimizer": (None, "fused")})


def of(size: int, optimizer: str | None = None) -> Candidate:
    return Candidate(micro_batch=size, knobs=Knobs(optimizer=optimizer))


def opened(storage: str | None, folder: Path | None = None, space: Space = SPACE) -> Study:
    return Study(open_storage(storage, folder)[0], "a", space, seed=0)


def row(trial: Handle, candidate: Candidate, outcome: Fate = Fate.OK, seconds: float | None = 1.0) -> Measurement:
    return Measurement(
        trial=trial.number,
        outcome=outcome,
        micro_batch=candidate.micro_batch,
        accumulation_steps=64 // candidate.micro_batch,
        options=candidate.knobs.options,
        update_seconds=seconds,
    )


def ask(study: Study, proposal: Candidate | None = None) -> tuple[Handle, Candidate]:
    asked = study.ask(lambda seen: proposal, lambda suggestion, seen: suggestion)
    assert asked is not None
    return asked


@pytest.fixture(params=["journal", "sqlite"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "study.journal") if request.param == "journal" else f"sqlite:///{tmp_path / 'study.db'}"


def test_what_is_enqueued_comes_first_then_proposals(storage: str) -> None:
    study = opened(storage)
    study.enqueue([of(64), of(16)])

    asked = [ask(study, of(8, "fused"))[1] for _ in range(3)]

    assert asked == [of(64), of(16), of(8, "fused")]


def test_another_process_sees_what_was_measured_and_what_runs(storage: str) -> None:
    first, second = opened(storage), opened(storage)
    trial, candidate = ask(first, of(64))
    first.tell(trial, row(trial, candidate), 1.0, -0.5)
    ask(first, of(16))

    assert second.seen() == [
        Seen(candidate=of(64), value=1.0, fate=Fate.OK),
        Seen(candidate=of(16), value=None, fate=None),
    ]


def test_two_processes_are_never_given_the_same(storage: str) -> None:
    first, second = opened(storage), opened(storage)
    first.enqueue([of(64)])
    second.enqueue([of(64)])

    given = [ask(first, of(16))[1], ask(second, of(16))[1], ask(first, of(8))[1], ask(second, of(4))[1]]

    assert given[:2] == [of(64), of(16)]
    assert len(set(given)) == 4


def test_a_finished_trial_is_there_whole_after_reopening(storage: str) -> None:
    study = opened(storage)
    trial, candidate = ask(study, of(32, "fused"))
    told = row(trial, candidate, seconds=0.25)
    study.tell(trial, told, 0.25, -0.1)
    study.crown(trial.number)
    duel = Duel(incumbent=0, challenger=1, ratio=0.9, ratio_low=0.8, ratio_high=0.95, rounds=3, winner=1)
    study.keep(duel)

    again = opened(storage)

    assert again.measurements() == [told]
    assert again.best == trial.number
    assert again.duels() == [duel]


def test_what_was_cut_off_is_run_again_by_whoever_goes_on(storage: str) -> None:
    study = opened(storage)
    ask(study, of(32, "fused"))  # and the process is killed

    again = opened(storage)
    again.take_up(alone=True)

    assert ask(again, of(64))[1] == of(32, "fused")


def test_what_a_dead_process_of_this_host_ran_is_run_again_beside_others(storage: str) -> None:
    code = (
        "import sys; from tests.test_study import ask, of, opened;"
        "study = opened(sys.argv[1]); study.enqueue([of(32, 'fused')]); ask(study)"
    )
    subprocess.run([sys.executable, "-c", code, storage], check=True, cwd=Path(__file__).parent.parent)

    other = opened(storage)
    other.take_up(alone=False)

    assert ask(other, of(64))[1] == of(32, "fused")


def test_an_owner_whose_trial_was_taken_over_goes_on(storage: str) -> None:
    study = opened(storage)
    trial, candidate = ask(study, of(32))
    opened(storage).take_up(alone=True)

    assert not study.report(trial, 1.0, 4)
    study.tell(trial, row(trial, candidate), 1.0, 0.0)
    study.give_back(trial)

    assert study.measurements() == []
    assert ask(study, of(64))[1] == of(32)


def test_what_others_run_is_left_to_them(storage: str) -> None:
    study = opened(storage)
    ask(study, of(32, "fused"))

    other = opened(storage)
    other.take_up(alone=False)

    assert ask(other, of(64))[1] == of(64)
    assert other.running() == 2


def test_a_trial_that_is_given_back_is_taken_by_the_next(storage: str) -> None:
    study = opened(storage)
    trial, _ = ask(study, of(32))
    study.give_back(trial)

    assert ask(opened(storage), of(64))[1] == of(32)
    assert study.measurements() == []


def test_when_nothing_new_comes_the_study_says_so() -> None:
    study = opened(None, space=space_of(2))
    for size in (1, 2):
        trial, candidate = ask(study, of(size))
        study.tell(trial, row(trial, candidate), float(size), 0.0)

    assert study.ask(lambda seen: None, lambda suggestion, seen: None) is None


def test_a_trial_far_above_the_best_is_pruned_and_one_close_to_it_is_not() -> None:
    study = opened(None)
    trial, candidate = ask(study, of(64))
    study.tell(trial, row(trial, candidate), 1.0, 0.0)

    slow, _ = ask(study, of(1))
    close, _ = ask(study, of(32))

    assert not study.report(slow, 1.2, 2)  # two windows are few
    assert study.report(slow, 1.2, 4)
    assert not study.report(close, 1.04, 4)


def test_a_trial_that_does_not_fit_is_infeasible_for_the_sampler() -> None:
    study = opened(None)
    trial, candidate = ask(study, of(64))
    study.tell(trial, row(trial, candidate, Fate.OOM, None), None, 0.25)

    (told,) = study._study.get_trials()
    assert (told.state, told.constraints) == (optuna.trial.TrialState.PRUNED, {"memory": 0.25})


def test_the_journal_lies_in_the_run_folder(tmp_path: Path) -> None:
    _, name = open_storage(None, tmp_path)

    opened(None, tmp_path)

    assert name == "study.journal"
    assert (tmp_path / "study.journal").stat().st_size > 0


@pytest.mark.parametrize(
    ("storage", "message"),
    [
        ("nosql://x", "cannot be opened: "),
        ("sqlite:////no/such/folder/x.db", "cannot be opened: "),
        ("/no/such/folder/x.journal", "there is no folder /no/such/folder"),
        (__file__, "is not a journal of Optuna"),
    ],
)
def test_a_storage_that_cannot_be_had_is_one_line(storage: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        open_storage(storage, None)

    assert "\n" not in str(raised.value)


def test_many_can_open_a_new_database_at_once(tmp_path: Path) -> None:
    code = "import sys; from autoaccum.tuning.storage import open_storage; open_storage(sys.argv[1], None)"
    command = [sys.executable, "-c", code, f"sqlite:///{tmp_path / 'new.db'}"]

    started = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(4)]

    assert [process.communicate()[1] for process in started] == [b""] * 4


def test_a_password_is_not_shown() -> None:
    with pytest.raises(UsageError) as raised:
        open_storage("nosql://me:secret@host/db", None)

    assert "secret" not in str(raised.value)
    assert "host/db" in str(raised.value)


def test_ground_knobs_that_do_not_vary_come_with_every_candidate() -> None:
    space = space_of(4, {"optimizer": (None, "fused")}, Knobs(checkpoint="all"))

    candidate = space.candidate({"micro_batch": 2, "optimizer": "fused"})

    assert candidate.knobs == Knobs(checkpoint="all", optimizer="fused")
    assert space.params(candidate) == {"micro_batch": 2, "optimizer": "fused"}
    assert PLAIN not in set(space.all_knobs())

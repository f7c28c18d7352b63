import contextlib
import math
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from tests.forked import in_a_child
from trieye.exceptions import RunInterrupted
from trieye.process.signals import (
    CTRL_C_ONCE_WITHIN_S,
    SAME_WITHIN_S,
    STOP_SIGNALS,
    LeaveOnSignal,
    StopSignals,
    children_outlive_signals,
    exit_code_of,
    interrupt_deferred,
)


@pytest.fixture(autouse=True)
def _default_handlers():
    """Set the default handler of every signal, and restore the test runner's handlers afterwards."""
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    for number in STOP_SIGNALS:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def stopping(**settings):
    exit_codes = []
    return StopSignals(exit_codes.append, "stopping", **settings), exit_codes


@pytest.mark.parametrize(
    ("number", "requeue", "code"),
    [
        (signal.SIGINT, None, 130),
        (signal.SIGINT, 75, 130),
        (signal.SIGTERM, None, 143),
        (signal.SIGTERM, 75, 75),
        (signal.SIGUSR1, None, 128 + signal.SIGUSR1),
        (signal.SIGUSR1, 0, 0),
        (signal.SIGXCPU, 75, 75),
        (signal.SIGHUP, None, 129),
    ],
)
def test_the_first_signal_requests_a_stop_with_the_configured_exit_code(number, requeue, code, capsys):
    stops, exit_codes = stopping(requeue_exit_code=requeue)
    before = signal.getsignal(number)
    with stops:
        signal.raise_signal(number)
    assert exit_codes == [code] == [stops.exit_code] == [exit_code_of(number, requeue)]
    assert f"{signal.Signals(number).name}: stopping" in capsys.readouterr().err
    assert signal.getsignal(number) is before or number in {signal.SIGXCPU, signal.SIGHUP}


def test_a_signal_requests_a_stop_even_if_stderr_is_closed(monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    stops, exit_codes = stopping()
    with open(writer, "w", buffering=1) as unread, monkeypatch.context() as patch, stops:  # noqa: PTH123 - a descriptor
        patch.setattr(sys, "stderr", unread)
        signal.raise_signal(signal.SIGTERM)
        with contextlib.suppress(BrokenPipeError):
            unread.close()
    assert exit_codes == [143]


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([signal.SIGTERM, signal.SIGTERM, signal.SIGUSR1], [143]),  # one request
        ([signal.SIGINT, signal.SIGTERM], [130, 143]),
        ([signal.SIGHUP, signal.SIGTERM], [129]),
    ],
)
def test_signals_in_quick_succession_are_one_request_unless_the_first_is_ctrl_c(numbers, expected):
    stops, exit_codes = stopping()
    with stops:
        for number in numbers:
            signal.raise_signal(number)
    assert exit_codes == expected


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_ctrl_c_after_any_signal_interrupts(first, monkeypatch):
    """Even if the program inherited an ignored SIGINT, as from a shell that starts `program &`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN if first == signal.SIGINT else signal.default_int_handler)
    monkeypatch.setattr("trieye.process.signals.CTRL_C_ONCE_WITHIN_S", -1.0)
    stops, exit_codes = stopping()
    with pytest.raises(KeyboardInterrupt), stops:
        signal.raise_signal(first)
        signal.raise_signal(signal.SIGINT)
    assert exit_codes == [128 + first]


def test_a_ctrl_c_that_a_launcher_forwards_to_its_process_group_is_one_request():
    stops, exit_codes = stopping()
    with stops:
        for _ in range(3):
            signal.raise_signal(signal.SIGINT)
        assert exit_codes == [130]
        time.sleep(2 * CTRL_C_ONCE_WITHIN_S)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


@pytest.fixture
def handled(monkeypatch):
    """Return the calls of a SIGTERM handler of the program; each signal is a request of its own."""
    calls = []
    signal.signal(signal.SIGTERM, lambda *_: calls.append("before"))
    monkeypatch.setattr("trieye.process.signals.SAME_WITHIN_S", -1.0)
    monkeypatch.setattr("trieye.process.signals.CTRL_C_ONCE_WITHIN_S", -1.0)
    return calls


@pytest.mark.parametrize(("first", "calls"), [(signal.SIGTERM, ["before"]), (signal.SIGUSR1, [])])
def test_only_a_repeated_signal_runs_the_previous_handler(handled, first, calls):
    stops, exit_codes = stopping()
    with stops:
        signal.raise_signal(first)
        signal.raise_signal(signal.SIGTERM)
    assert (handled, exit_codes) == (calls, [128 + first])


@pytest.mark.parametrize("number", [signal.SIGXCPU, signal.SIGHUP])
def test_a_signal_that_the_kernel_repeats_is_one_request(number, monkeypatch):
    monkeypatch.setattr("trieye.process.signals.SAME_WITHIN_S", -1.0)
    stops, exit_codes = stopping()
    with stops:
        for _ in range(3):
            signal.raise_signal(number)
    signal.raise_signal(number)
    assert exit_codes == [128 + number]


def test_a_loop_closed_by_another_thread_passes_signals_to_the_previous_handlers():
    def loop():
        with stops:
            yield

    (stops, exit_codes), (later, later_exit_codes), handled = stopping(), stopping(), []
    signal.signal(signal.SIGTERM, lambda *_: handled.append("before"))
    steps = loop()
    next(steps)
    collector = threading.Thread(target=steps.close)
    collector.start()
    collector.join()
    with later:
        signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert (exit_codes, later_exit_codes, handled) == ([], [143], ["before"])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize(("number", "is_ignored"), [(signal.SIGUSR1, False), (signal.SIGHUP, True)])
def test_a_signal_that_the_program_handles_or_ignores_as_under_nohup_is_left_to_it(number, is_ignored):
    handled = []
    handler = signal.SIG_IGN if is_ignored else lambda *_: handled.append(number)
    signal.signal(number, handler)
    stops, exit_codes = stopping()
    with LeaveOnSignal("leaving"), stops:
        signal.raise_signal(number)
    assert (handled, exit_codes) == ([] if is_ignored else [number], [])
    assert signal.getsignal(number) is handler


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGXCPU, signal.SIGHUP])
def test_a_signal_outside_a_loop_raises_run_interrupted(number, capsys):
    leave = LeaveOnSignal("leaving run 'a'", requeue_exit_code=75)
    with leave, pytest.raises(RunInterrupted, match="leaving run 'a'") as raised:
        signal.raise_signal(number)
    assert isinstance(raised.value, SystemExit)
    assert raised.value.code == raised.value.exit_code == 75
    assert signal.Signals(number).name in capsys.readouterr().err


@pytest.mark.parametrize("closed_first", [0, 1])
def test_a_signal_leaves_the_runs_that_are_still_open(closed_first):
    before = signal.getsignal(signal.SIGTERM)
    runs = [LeaveOnSignal(name) for name in ("first", "second")]
    for run in runs:
        run.take()
    closed = runs.pop(closed_first)
    closed.give_back()
    with pytest.raises(RunInterrupted, match=runs[0]._message):
        signal.raise_signal(signal.SIGTERM)
    assert closed.asked_at < runs[0].asked_at
    runs[0].asked_at = -math.inf
    runs[0].give_back()
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.fixture
def ray_handling():
    """Set a handler of SIGTERM that counts as Ray's, and return the list of its signals and the handler."""
    handled = []

    def ray_handler(number, frame):
        handled.append(number)

    ray_handler.__module__ = "ray._private.node"
    signal.signal(signal.SIGTERM, ray_handler)
    return handled, ray_handler


def test_a_run_closed_by_another_thread_passes_signals_to_the_previous_handlers(ray_handling):
    leave, (handled, ray_handler) = LeaveOnSignal("leaving"), ray_handling
    leave.take()
    closer = threading.Thread(target=leave.give_back)
    closer.start()
    closer.join()
    signal.raise_signal(signal.SIGTERM)
    assert handled == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is ray_handler


def test_an_exiting_program_ignores_a_signal_repeated_shortly_after_the_first(ray_handling):
    handled, ray_handler = ray_handling
    runs = [LeaveOnSignal("leaving the first run"), LeaveOnSignal("leaving the second run")]
    for leave, message in zip(runs, ("first", "second"), strict=True):
        with leave, pytest.raises(RunInterrupted, match=message):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
    assert handled == []
    for leave in runs:
        leave.asked_at -= SAME_WITHIN_S + 0.01
    signal.raise_signal(signal.SIGTERM)
    assert handled == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is ray_handler


def test_a_signal_repeated_right_after_the_loop_is_the_same_request():
    stops, exit_codes = stopping()
    with LeaveOnSignal("leaving") as leave:
        with stops:
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        leave.asked_at -= SAME_WITHIN_S + 0.01
        with pytest.raises(RunInterrupted):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)  # the program is already exiting
    assert exit_codes == [143]


def test_an_uncaught_run_interrupted_exits_with_its_code_and_no_traceback():
    code = "from trieye.exceptions import RunInterrupted; raise RunInterrupted('stopped', 75)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (75, "")


SLEEPER = "import sys; print('up', flush=True); sys.stdin.read()"
OUTLIVING = f"import trieye.process.signals; trieye.process.signals.outlive_signals(); {SLEEPER}"


def start(code):
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    process.stdout.readline()
    return process


def test_children_outlive_scheduler_signals_and_the_sigterm_handler_is_kept():
    before = signal.getsignal(signal.SIGTERM)
    with children_outlive_signals():
        masked = start(SLEEPER)
        signal.signal(signal.SIGTERM, lambda *_: None)  # as `ray.init` does
    unmasked = start(SLEEPER)
    handling = start(OUTLIVING)
    for process in (masked, unmasked, handling):
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGUSR1)
        process.send_signal(signal.SIGTERM)
    for process in (masked, unmasked, handling):
        process.communicate("", timeout=20)
    assert masked.returncode == handling.returncode == 0
    assert unmasked.returncode in {-signal.SIGHUP, -signal.SIGUSR1, -signal.SIGTERM}
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_during_the_start_of_children_is_deferred():
    reached = False
    with LeaveOnSignal("leaving"), pytest.raises(RunInterrupted), children_outlive_signals():
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        reached = True
    assert reached


def test_an_exit_by_rays_handler_during_the_start_becomes_run_interrupted():
    leave = LeaveOnSignal("leaving", requeue_exit_code=75)
    with leave, pytest.raises(RunInterrupted) as raised, children_outlive_signals():
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(number))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # as in the other threads
        signal.raise_signal(signal.SIGTERM)
    assert raised.value.exit_code == 75


def test_ctrl_c_is_deferred_to_the_end_of_the_block_and_a_second_one_interrupts_it(capsys, monkeypatch):
    before, reached = signal.getsignal(signal.SIGINT), []
    with pytest.raises(KeyboardInterrupt), interrupt_deferred("waiting ..."):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)  # forwarded: the same request
        reached.append("end of the block")
    monkeypatch.setattr("trieye.process.signals.CTRL_C_ONCE_WITHIN_S", -1.0)
    with pytest.raises(KeyboardInterrupt), interrupt_deferred("waiting ..."):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        reached.append("after the second Ctrl-C")
    with interrupt_deferred("waiting ..."):
        pass
    assert reached == ["end of the block"]
    assert capsys.readouterr().err.count("SIGINT: waiting ...") == 2
    assert signal.getsignal(signal.SIGINT) is before


def test_a_deferred_ctrl_c_requests_a_stop_of_the_enclosing_loop():
    with StopSignals(lambda _: None, "stopping") as stop:
        with interrupt_deferred("waiting ..."):
            signal.raise_signal(signal.SIGINT)
            assert stop.exit_code is None
        assert stop.exit_code == 130


def test_sigterm_ends_a_child_of_a_masked_worker():
    code = (
        "import subprocess, sys; from trieye.process.signals import let_sigterm_through; let_sigterm_through()\n"
        "child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
        "child.terminate(); print(child.wait())"
    )
    with children_outlive_signals():
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=20)
    assert done.stdout.strip() == str(-signal.SIGTERM)


def test_a_forked_child_has_the_original_handlers_and_signal_mask_also_after_it_leaves_the_loop():
    def user_handler(number, frame):
        raise AssertionError("nobody sends one")

    def check():
        for _ in range(2):
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
            assert signal.getsignal(signal.SIGUSR1) is user_handler
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
            assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before | {signal.SIGUSR2}
            stops.__exit__(None, None, None)
        return 0

    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    signal.signal(signal.SIGUSR1, user_handler)
    stops, exit_codes = stopping()
    try:
        with LeaveOnSignal("leaving"):
            with stops:
                assert in_a_child(check) == 0
                signal.raise_signal(signal.SIGTERM)
                assert exit_codes == [143]
            assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before | {signal.SIGUSR2}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@pytest.mark.parametrize("how", ["signal.raise_signal", "_thread.interrupt_main"])  # to this thread, to another one
@pytest.mark.parametrize("when", ["before", "after_in_parent"])
def test_a_signal_during_a_fork_takes_effect_after_all_fork_hooks(how, when):
    code = f"""
import _thread, os, signal, time
from trieye.process.signals import LeaveOnSignal
hooks_done = []
def hook():
    {how}(signal.SIGTERM)
    hooks_done.append(True)
os.register_at_fork({when}=hook)  # of a library imported after trieye
LeaveOnSignal("leaving").take()
try:
    os.fork() or os._exit(0)
    time.sleep(60)
finally:
    assert hooks_done
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stderr.strip()) == (143, "trieye: SIGTERM: leaving")

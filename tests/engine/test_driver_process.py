import os
import signal
import subprocess
import sys
import textwrap

import pytest

SCRIPT = """
import os, sys, threading, time
from fedsim.engine.protocols import Task
from fedsim.engine.options import EngineOptions
from fedsim.engine.start import start

class Handler:
    def __init__(self, factor):
        self.factor = factor
    def run(self, broadcast, task):
        return [self.one(payload) for payload in task.payloads]
    def one(self, payload):
        if payload == "hang":
            os.write(1, b"%d" % os.getpid() + bytes([10]))  # one write: two workers share the pipe
            time.sleep(600)
        return self.factor * payload

def set_up(data, place):
    return Handler(data)

def call(engine, *payloads):
    return list(engine.run(None, [Task((i,), (p,)) for i, p in enumerate(payloads)], round=1).values())
"""


def script(body):
    return SCRIPT + textwrap.dedent(body)


def run_from_standard_input(body, **options):
    return subprocess.run(
        [sys.executable, "-W", "error", "-"],
        input=script(body),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **options,
    )


def start_script(body, tmp_path):
    path = tmp_path / "script.py"  # without a main guard
    path.write_text(script(body))
    return subprocess.Popen(
        [sys.executable, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_a_script_on_standard_input_with_its_own_classes_runs_without_ray():
    done = run_from_standard_input("""
    sys.modules["ray"] = None  # as if it were not installed
    for workers in (1, 2):
        with start(EngineOptions(workers=workers), set_up, 10) as engine:
            print(call(engine, 1, 2))
    """)
    assert done.stderr == ""
    assert done.stdout == "[10, 20]\n[10, 20]\n"


def test_without_ray_the_ray_backend_says_what_to_install():
    done = run_from_standard_input("""
    sys.modules["ray"] = None
    start(EngineOptions(backend="ray", workers=1), set_up, 10)
    """)
    assert "WorkerError: engine.backend = 'ray' needs Ray: pip install 'flwr[simulation]'" in done.stderr


def test_in_process_engines_never_import_ray():
    done = run_from_standard_input("""
    with start(EngineOptions(workers=1), set_up, 10) as engine:
        call(engine, 1)
    print("ray" in sys.modules)
    """)
    assert done.stdout == "False\n"


def test_an_engine_that_was_not_closed_ends_with_the_script():
    done = run_from_standard_input("""
    engine = start(EngineOptions(workers=2), set_up, 10)
    print(call(engine, 1, 2))
    """)
    assert (done.stdout, done.stderr, done.returncode) == ("[10, 20]\n", "", 0)


@pytest.mark.parametrize("thread", [False, True], ids=["main-thread", "other-thread"])
def test_workers_end_with_a_driver_that_is_killed(thread, tmp_path, ended):
    driver = start_script(
        f"""
        def work():
            call(start(EngineOptions(workers=2), set_up, 10), "hang", "hang")
        if {thread}:
            threading.Thread(target=work).start()
        else:
            work()
        """,
        tmp_path,
    )
    workers = [int(driver.stdout.readline()) for _ in range(2)]
    os.kill(driver.pid, signal.SIGKILL)
    driver.communicate()
    assert ended(workers)


def test_workers_outlive_the_thread_that_started_them():
    done = run_from_standard_input("""
    engines = []
    thread = threading.Thread(target=lambda: engines.append(start(EngineOptions(workers=2), set_up, 10)))
    thread.start()
    thread.join()
    time.sleep(1.0)
    with engines[0] as engine:
        print(call(engine, 1, 2))
    """)
    assert done.stdout == "[10, 20]\n"


def test_an_interrupted_call_leaves_an_engine_that_works(tmp_path):
    driver = start_script(
        """
        import signal
        # A shell's background job (`nohup ... &`) ignores interrupts, and so does every child of it
        signal.signal(signal.SIGINT, signal.default_int_handler)
        engine = start(EngineOptions(workers=2), set_up, 10)
        try:
            call(engine, "hang", "hang")
        except KeyboardInterrupt:
            print("interrupted", call(engine, 1, 2))
        engine.close()
        """,
        tmp_path,
    )
    for _ in range(2):
        driver.stdout.readline()
    os.kill(driver.pid, signal.SIGINT)
    output, errors = driver.communicate(timeout=60)
    assert (output, errors) == ("interrupted [10, 20]\n", "")

# SPDX-License-Identifier: Apache-2.0
"""What a process has remembered, the next one finds, however the first one ended; and what is not written is said."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.needs_transformers

_BEGIN = f"""
import os, signal, resource, sys, time
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
import quire
from quire.integrations.transformers import prefix_cache
from test_transformers import after, generate, make_model, tokens
model = make_model("llama")
prompt = after(tokens(1, 300), 2, 7)
"""
_OPEN = """
cache = prefix_cache(model, directory=sys.argv[1], device_bytes=8 << 20)
"""


def run(directory: pathlib.Path, script: str, returncode: int = 0) -> str:
    program = _BEGIN + textwrap.dedent(script)
    process = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", program, str(directory)], capture_output=True, text=True, timeout=300
    )
    assert process.returncode == returncode, process.stderr
    return process.stdout.strip()


_FIND = _OPEN + "generate(model, prompt, cache)\nprint(cache.last.reused_tokens)\n"

_ENDS = {
    "normal": "",
    "in a function": """
        def last(cache):
            generate(model, prompt, cache)
        last(prefix_cache(model, directory=sys.argv[1] + "/../other", device_bytes=8 << 20))
        """,
    "exception": "raise SystemExit(0)",
    "idle, then gone at once": """
        for _ in range(200):
            time.sleep(0.05)
            if cache.quire.stats().disk_waiting_pages == 0 and cache.quire.stats().disk_stored_page_total >= 18:
                break
        time.sleep(1.0)
        os._exit(0)
        """,
    "idle, then killed": """
        time.sleep(3.0)
        print("here", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """,
}


@pytest.mark.parametrize("end", _ENDS)
def test_the_next_process_finds_what_this_one_remembered(end: str, tmp_path: pathlib.Path) -> None:
    directory = tmp_path / "pages"
    directory.mkdir()
    script = _OPEN + "generate(model, prompt, cache)\nassert cache.last.published_tokens >= 304\n"
    run(directory, script + textwrap.dedent(_ENDS[end]), returncode=-9 if "killed" in end else 0)
    assert run(directory, _FIND) == "304"


def test_a_disk_that_takes_nothing_is_said_in_the_call_that_fills_it(tmp_path: pathlib.Path) -> None:
    script = """
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        generate(model, prompt, cache)
        assert cache.quire.wait_until_flushed(30.0) and not cache.last.error, cache.last.error
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        generate(model, after(tokens(5, 600), 6, 7), cache)
        for _ in range(200):
            if cache.last.error:
                break
            time.sleep(0.05)
        print(cache.last.error)
        assert cache.last.published_tokens >= 600
        generate(model, after(tokens(7, 600), 8, 7), cache)
        time.sleep(0.5)
        print(cache.last.error)
        os._exit(0)
        """
    first, second = run(tmp_path, _OPEN + textwrap.dedent(script)).splitlines()
    assert "pages were not written to disk: " in first and "File too large" in first
    assert "pages were not written to disk: " in second


def test_the_writer_ends_with_its_cache(tmp_path: pathlib.Path) -> None:
    script = """
        import gc, threading
        def writers():
            return [thread for thread in threading.enumerate() if thread.name == "quire-writer"]
        assert len(writers()) == 1
        generate(model, prompt, cache)
        cache.close()
        assert not writers()
        cache = prefix_cache(model, directory=sys.argv[1], device_bytes=8 << 20)
        generate(model, prompt, cache)
        print(cache.last.reused_tokens)
        del cache
        gc.collect()
        assert not writers()
        """
    assert run(tmp_path, _OPEN + textwrap.dedent(script)) == "304"

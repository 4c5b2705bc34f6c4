"""Several engines at work on one list of requests, a thread each.

One thread per engine wastes less than many threads in one engine: the products of a pass are
small, and threads that wait for each other stand still where the machine has other work.
"""

from __future__ import annotations

import copy
import queue
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from yggc.train.slots import Engine
from yggc.train.write import Answer, Request, write_answers


def share(model: Any, num: int) -> list[Any]:
    """`num` models with the same parameters; the first is `model`."""
    tensors = [*model.parameters(), *model.buffers()]
    return [model] + [
        copy.deepcopy(model, {id(one): one for one in tensors}) for _ in range(num - 1)
    ]


def write_together(
    engines: Sequence[Engine], requests: Iterable[Request], eos_ids: Iterable[int], max_tokens: int
) -> Iterator[Answer]:
    """As `write_answers`, with the slots of all engines; `requests` is asked in this thread."""
    if len(engines) == 1:
        yield from write_answers(engines[0], requests, eos_ids, max_tokens)
        return
    num_slots = sum(engine.num_slots for engine in engines)
    todo: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
    done: queue.SimpleQueue[Answer | BaseException | None] = queue.SimpleQueue()
    stopped = threading.Event()
    ends = tuple(eos_ids)

    def work(engine: Engine) -> None:
        torch.set_num_threads(1)
        try:
            for answer in write_answers(engine, iter(todo.get, None), ends, max_tokens):
                done.put(answer)
                if stopped.is_set():
                    return
            done.put(None)
        except BaseException as error:  # is raised where the answers are taken
            done.put(error)

    threads = [threading.Thread(target=work, args=(engine,), daemon=True) for engine in engines]
    for thread in threads:
        thread.start()
    pending = iter(requests)
    # One more request waits for every slot, so that no engine waits for this thread.
    num_asked, num_working, more = 0, len(engines), True
    num_answered = 0
    try:
        while num_working:
            while more and num_asked - num_answered < 2 * num_slots:
                request = next(pending, None)
                if request is None:
                    more = False
                    for _ in engines:
                        todo.put(None)
                else:
                    num_asked += 1
                    todo.put(request)
            found = done.get()
            if isinstance(found, BaseException):
                raise found
            if found is None:
                num_working -= 1
            else:
                num_answered += 1
                yield found
    finally:
        stopped.set()
        for _ in engines:
            todo.put(None)
        for thread in threads:
            thread.join()

"""Pools of processes and threads: kept from the beginning, and made for one request."""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.pool import ThreadPool


def squared(number):
    return [number * number, os.getppid()]


class Pools:
    def initialize(self, context):
        self.pid = os.getpid()
        self.kept = multiprocessing.Pool(2)

    def handle(self, data, context):
        return [getattr(self, bytes(row["body"]).decode())() for row in data]

    def kept_pool(self):
        return self.checked(self.kept.map(squared, range(4)))

    def new_pool(self):
        with multiprocessing.Pool(2) as pool:
            return self.checked(pool.imap_unordered(squared, range(4)))

    def executor(self):
        with ProcessPoolExecutor(2) as executor:
            return self.checked(executor.map(squared, range(4)))

    def threads(self):
        with ThreadPool(2) as pool:
            return sorted(number for number, _ in pool.map(squared, range(4)))

    def process(self):
        queue = multiprocessing.Queue()
        process = multiprocessing.Process(target=lambda: queue.put(squared(3)), daemon=True)
        process.start()
        found = self.checked([queue.get(timeout=10)])
        process.join()
        return [*found, process.exitcode]

    def checked(self, found):
        found = list(found)
        assert {parent for _, parent in found} == {self.pid}
        return sorted(number for number, _ in found)

"""Programs that try to pass a test without doing what it asks, and right ones with tests of all kinds."""

from __future__ import annotations

CHEATS = {
    "exits": """
import sys
sys.exit(0)
""",
    "exits at once": """
import os
os._exit(0)
""",
    "exits in the test": """
import os
def add(a, b): os._exit(0)
""",
    "raises an exit": """
def add(a, b): raise SystemExit(0)
""",
    "prints success": """
print('ok'); print('passed'); print('OK', flush=True)
def add(a, b): return None
""",
    "reads the pipes": r"""
import os
for fd in range(64):
    try:
        os.set_blocking(fd, False)
        got = os.read(fd, 65536)
    except OSError: continue
    for out in range(64):
        try: os.write(out, got.split(b"\n")[0])
        except OSError: pass
os._exit(0)
""",
    "writes to all pipes": r"""
import os
for fd in range(64):
    try: os.write(fd, b'["names", {"add": ["value", ["builtin", "min"]]}]\n')
    except OSError: pass
""",
    "equals everything": """
class Any:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __eq__
    __hash__ = object.__hash__
def add(a, b): return Any()
""",
    "a number that equals everything": """
class Any(int):
    def __eq__(self, other): return True
def add(a, b): return Any()
""",
    "a tuple that equals everything": """
class Any(tuple):
    def __eq__(self, other): return True
def add(a, b): return Any()
""",
    "an object that equals everything by its distance": """
class Zero:
    def __sub__(self, other): return 0.0
    __rsub__ = __mod__ = __rmod__ = __sub__
    def __truediv__(self, other): return 1.0
    __rtruediv__ = __truediv__
def add(a, b): return Zero()
""",
    "mock.ANY": """
from unittest.mock import ANY
def add(a, b): return ANY
""",
    "replaces builtins": """
import builtins
builtins.AssertionError = type("Nothing", (Exception,), {})
builtins.exec = builtins.compile = builtins.open = lambda *a, **k: None
def add(a, b): return 0
""",
    "names as builtins": """
def sorted(x): return 1
len = all = any = sorted
def add(a, b): return 0
""",
    "looks into frames": """
import sys, os
def add(a, b):
    frame = sys._getframe()
    while frame:
        for value in list(frame.f_locals.values()) + list(frame.f_globals.values()):
            if isinstance(value, bytes) and len(value) == 32: os.write(1, value)
        frame = frame.f_back
    for each in list(sys._current_frames().values()): pass
    os._exit(0)
""",
    "looks into its parent": r"""
import os
def add(a, b):
    found = b""
    for name in ("mem", "environ", "maps", "fd/0", "fd/3"):
        try: found += open(f"/proc/{os.getppid()}/{name}", "rb").read(99) or b"1"
        except OSError: pass
    return 3 if found.strip(b"\0") else 0
""",
    "traces its parent": """
import ctypes, os
def add(a, b): return 3 if ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0) == 0 else 0
""",
    "kills its parent": """
import os
def add(a, b): os.kill(os.getppid(), 15)
""",
    "skips": """
import unittest
def add(a, b): raise unittest.SkipTest
""",
    "at exit": """
import atexit, os
atexit.register(lambda: (print('ok'), os._exit(0)))
def add(a, b): return 0
""",
    "a thread that ends it": """
import os, threading, time
threading.Thread(target=lambda: (time.sleep(0.05), os._exit(0)), daemon=True).start()
def add(a, b):
    time.sleep(0.5)
    return 0
""",
    "changes its file": """
open('program.py', 'w').write('def add(a, b): return 0')
def add(a, b): return 0
""",
}
"""What it tries -> a program whose `add` gives no sum."""

FAITHFUL = {
    "functions": (
        """
def add(a, b):
    return a + b
""",
        """
assert add([1], [2]) == [1, 2] and add(a=1, b=2.5) == 3.5
""",
    ),
    "plain data of all kinds": (
        """
def same(x): return x
""",
        r"""
nested = [1, (2, {3})], {1: {'a': frozenset({(1, 2)})}}
for x in (None, True, 10**30, -1.5, float('inf'), 2j, 'a\n', b'\xff', bytearray(b'1'), *nested):
    assert same(x) == x and type(same(x)) is type(x)
""",
    ),
    "not a number": (
        """
def nan(): return float('nan')
""",
        """
import math; assert math.isnan(nan())
""",
    ),
    "the library's classes": (
        """
from collections import Counter, defaultdict, OrderedDict
from fractions import Fraction
from datetime import date
from decimal import Decimal
def all_of(): return [Counter('aab'), OrderedDict(a=1), Fraction(1, 3), date(2024, 2, 29), Decimal('0.10')]
""",
        """
from fractions import Fraction
from datetime import date
from decimal import Decimal
assert all_of() == [{'a': 2, 'b': 1}, {'a': 1}, Fraction(1, 3), date(2024, 2, 29), Decimal('0.1')]
""",
    ),
    "arguments are changed in place": (
        """
def sort(x, y, z): x.sort(); y['a'] = 1; z.add(2); x[0].append(9)
""",
        """
x, y, z = [[3], [1]], {}, set()
assert sort(x, y, z) is None
assert (x, y, z) == ([[1, 9], [3]], {'a': 1}, {2})
""",
    ),
    "classes and objects": (
        """
class Stack:
    size = 3
    def __init__(self): self.items = []
    def push(self, x): self.items.append(x)
    def __len__(self): return len(self.items)
    def __getitem__(self, i): return self.items[i]
    def __contains__(self, x): return x in self.items
    def __repr__(self): return 'a stack'
""",
        """
s = Stack()
s.push(1); s.push('a')
s.size = 4
assert len(s) == 2 and s[1] == 'a' and 1 in s and 5 not in s
assert list(s) == [1, 'a'] and str(s) == 'a stack' and isinstance(s, Stack) and (s.size, Stack.size) == (4, 3)
""",
    ),
    "objects among each other": (
        """
from dataclasses import dataclass
@dataclass(frozen=True, order=True)
class P:
    x: int
    y: int = 0
    def __add__(self, o): return P(self.x + o.x, self.y + o.y)
""",
        """
assert P(1) + P(2, 3) == P(3, 3) and P(1) < P(2) and P(1) != P(2) and len({P(1), P(1)}) == 1 and P(3).x == 3
""",
    ),
    "linked nodes": (
        """
class Node:
    def __init__(self, val=0, next=None): self.val, self.next = val, next
class Solution:
    def flip(self, head):
        last = None
        while head: head.next, last, head = last, head, head.next
        return last
""",
        """
n = Solution().flip(Node(1, Node(2, Node(3))))
seen = []
while n: seen.append(n.val); n = n.next
assert seen == [3, 2, 1]
""",
    ),
    "nodes of the test": (
        """
def flip(head):
    last = None
    while head: head.next, last, head = last, head, head.next
    return last
""",
        """
class Node:
    def __init__(self, val, next=None): self.val, self.next = val, next
n = flip(Node(1, Node(2, Node(3))))
seen = []
while n: seen.append(n.val); n = n.next
assert seen == [3, 2, 1]
""",
    ),
    "errors": (
        """
class Mine(ValueError): pass
def bad(x):
    if x: raise Mine('no', x)
    return {}['k']
""",
        """
for kind in (Mine, ValueError):
    try: bad(2)
    except kind as e: assert e.args == ('no', 2)
    else: assert False
try: bad(0)
except KeyError as e: assert e.args == ('k',)
""",
    ),
    "functions of the test": (
        """
def twice(f, x): return f(f(x))
def by(key, x): return sorted(x, key=key)
""",
        """
assert twice(lambda x: x * 2, 3) == 12 and by(len, ['aa', 'b']) == ['b', 'aa'] and by(lambda x: -x, [1, 2]) == [2, 1]
""",
    ),
    "generators": (
        """
def count():
    n = 0
    while True: yield n; n += 1
""",
        """
import itertools
assert list(itertools.islice(count(), 4)) == [0, 1, 2, 3] and next(count()) == 0
""",
    ),
    "named tuples": (
        """
from collections import namedtuple
P = namedtuple('P', 'x y')
def p(): return P(1, 2)
""",
        """
assert p() == (1, 2) and p().y == 2 and p() != (1, 3)
""",
    ),
    "what the program imported": (
        """
import math
from math import gcd
import datetime
def one(): return 1
""",
        """
assert math.isclose(one(), gcd(2, 3)) and datetime.date(2024, 1, 1)
""",
    ),
    "an import of the solution": (
        """
def add(a, b):
    return a + b
def max(x): return -1
""",
        """
from solution import add, max
assert add(max([1]), 2) == 1
""",
    ),
    "a check as HumanEval has it": (
        """
def add(a, b):
    return a + b
""",
        """
def check(candidate):
    assert candidate(1, 2) == 3
check(add)
""",
    ),
    "functions called test": (
        """
def add(a, b):
    return a + b
""",
        """
def test_one():
    assert add(1, 2) == 3
def test_two(x=2):
    assert add(x, 2) == 4
""",
    ),
    "unittest": (
        """
def add(a, b):
    return a + b
""",
        """
import unittest
class T(unittest.TestCase):
    def test(self): self.assertEqual(add(1, 2), 3)
    def test_error(self):
        with self.assertRaises(TypeError): add(1, 'a')
""",
    ),
    "what it prints is not its result": (
        """
print('hello')
def add(a, b):
    return a + b
""",
        """
assert add(1, 2) == 3
""",
    ),
    "deep recursion": (
        """
def depth(n): return 0 if n == 0 else 1 + depth(n - 1)
""",
        """
assert depth(900) == 900
""",
    ),
}
"""What crosses -> a program, and a test that it passes."""

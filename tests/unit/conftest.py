"""Hand-written kernels with the CPU's binary interface, for the tests of what runs kernels."""

from collections.abc import Callable

import pytest

KernelSource = Callable[..., str]


def kernel_source(name: str, chunk: str, extent: str = "ret i64 1", declare: str = "") -> str:
    """A kernel that runs the instructions `chunk` for each chunk %i; `%args` is its table.

    `extent` is the body of NAME.extent. Slot n of the table is loaded by `slot` below.
    """
    return f"""
{declare}
define i64 @"{name}.extent"(ptr %args) nounwind {{
entry:
  {extent}
}}
define void @"{name}"(ptr %args, i64 %start, i64 %stop) nounwind {{
entry:
  %any = icmp slt i64 %start, %stop
  br i1 %any, label %loop, label %done
loop:
  %i = phi i64 [ %start, %entry ], [ %i.next, %tail ]
  br label %chunk
chunk:
{chunk}
  br label %tail
tail:
  %i.next = add i64 %i, 1
  %more = icmp slt i64 %i.next, %stop
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""


def slot(result: str, number: int, kind: str = "ptr") -> str:
    """Instructions that load slot `number` of the argument table as %result."""
    return (
        f"  %{result}.at = getelementptr i64, ptr %args, i64 {number}\n"
        f"  %{result} = load {kind}, ptr %{result}.at\n"
    )


def extent_from(number: int) -> str:
    """The extent is the variable in slot `number`."""
    return slot("n", number, "i64") + "  ret i64 %n"


def add_kernel(name: str = "add", extent: str = "ret i64 1") -> str:
    """float32: out[i] = a[i] + b[i] for each chunk i; slots out, a, b."""
    body = slot("out", 0) + slot("a", 1) + slot("b", 2)
    body += """
  %a.i = getelementptr float, ptr %a, i64 %i
  %b.i = getelementptr float, ptr %b, i64 %i
  %out.i = getelementptr float, ptr %out, i64 %i
  %x = load float, ptr %a.i
  %y = load float, ptr %b.i
  %z = fadd float %x, %y
  store float %z, ptr %out.i
"""
    return kernel_source(name, body, extent)


def count_kernel(name: str, extent: str, busy: int = 0) -> str:
    """int64: out[i] += 1 for each chunk i, after `busy` turns of an empty loop; slot out."""
    body = slot("out", 0)
    body += f"""
  br label %wait
wait:
  %turn = phi i64 [ 0, %chunk ], [ %turn.next, %wait ]
  call void asm sideeffect "", ""()
  %turn.next = add i64 %turn, 1
  %again = icmp slt i64 %turn.next, {busy}
  br i1 %again, label %wait, label %count
count:
  %out.i = getelementptr i64, ptr %out, i64 %i
  %old = load i64, ptr %out.i
  %new = add i64 %old, 1
  store i64 %new, ptr %out.i
"""
    return kernel_source(name, body, extent)


@pytest.fixture
def kernels() -> dict[str, KernelSource]:
    """The makers of kernels above, by name."""
    makers = (kernel_source, slot, extent_from, add_kernel, count_kernel)
    return {maker.__name__: maker for maker in makers}

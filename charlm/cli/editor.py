"""The editor of `charlm write`: what is typed, and behind the cursor the model's continuation in gray.

The one place that imports prompt_toolkit, which the extra `write` brings.
"""

import asyncio
import contextlib
import signal
from collections.abc import Callable
from dataclasses import dataclass, field

from charlm.errors import PackageError

try:
    from prompt_toolkit.application import Application
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "prompt_toolkit":
        raise
    raise PackageError("write: prompt_toolkit is not installed; pip install prompt_toolkit") from None

from prompt_toolkit.auto_suggest import Suggestion
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.filters import Always, Condition, Filter
from prompt_toolkit.input import Input, create_input
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.layout import BufferControl, HSplit, Layout, Window
from prompt_toolkit.layout.controls import FormattedTextControl
from prompt_toolkit.layout.processors import AppendAutoSuggestion
from prompt_toolkit.output import Output, create_output

from charlm.inference.continuing import Offer
from charlm.system.formatting import one_line

_DEBOUNCE_S = 0.03
"""How long nothing must be typed before continuations are drawn."""
_HELP = "Tab: a word  →: all  Alt-↑ Alt-↓: another  Ctrl-S: end"


@dataclass
class Editor:
    """A text and its continuations, on a terminal."""

    draw: Callable[[str], list[str]]
    """Gives continuations of a text; called in another thread, once at a time."""
    note: Callable[[str], str]
    """What to say about a text, if anything."""
    offer: Offer = field(default_factory=Offer)
    exit_code: int = 0
    """As a shell gives it: 128 plus the number of the signal, or of Ctrl-C's, that ended it."""
    _noted: str = ""

    def __post_init__(self) -> None:
        self._changed = asyncio.Event()
        self.buffer = Buffer(multiline=True, on_text_changed=self._typed, on_cursor_position_changed=self._show)

    def run(self, input: Input | None = None, output: Output | None = None) -> str:
        """Let the user write; returns the text. The terminal is stdin and stdout, or stderr if that is a pipe."""
        text = BufferControl(self.buffer, input_processors=[AppendAutoSuggestion("fg:ansibrightblack")])
        status = Window(FormattedTextControl(self._status), height=1, style="reverse")
        self._application = Application[None](
            layout=Layout(HSplit([Window(text, wrap_lines=True), status])),
            key_bindings=self._keys(),
            input=input or create_input(always_prefer_tty=True),
            output=output or create_output(always_prefer_tty=True),
            full_screen=True,
        )
        self._application.run(pre_run=self._begin)
        return self.buffer.text

    def _begin(self) -> None:
        self._application.create_background_task(self._drawing())
        loop = asyncio.get_running_loop()
        for name in ("SIGTERM", "SIGHUP"):
            with contextlib.suppress(AttributeError, NotImplementedError, RuntimeError):  # not on Windows
                loop.add_signal_handler(getattr(signal, name), self._interrupt, getattr(signal, name))
        self._changed.set()  # an empty text has continuations too

    # The text

    def _typed(self, _: object) -> None:
        self.offer.typed(self.buffer.text)
        self._noted = ""
        self._changed.set()
        self._show()

    def _show(self, _: object = None) -> None:
        """Put the continuation behind the cursor, if that is at the end of the text."""
        at_end = self.buffer.document.is_cursor_at_the_end
        shown = self.offer.shown.replace("\n", "↵") if at_end else ""
        self.buffer.suggestion = Suggestion(shown) if shown else None

    async def _drawing(self) -> None:
        """Draw continuations whenever the text has changed, without blocking what is typed."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), _DEBOUNCE_S)
                continue
            text = self.buffer.text
            options = await asyncio.get_running_loop().run_in_executor(None, self.draw, text)
            self.offer.drawn(text, options)
            if unknown := self.note(text):
                self._noted = unknown
            self._show()
            self._application.invalidate()

    def _status(self) -> str:
        count = len(self.offer.options)
        place = f"  {self.offer.index + 1}/{count}" if count else ""
        return one_line(f" {_HELP}{place}{f'  {self._noted}' if self._noted else ''}")

    # Keys

    def _keys(self) -> KeyBindings:
        keys, offered = KeyBindings(), Condition(lambda: self.buffer.suggestion is not None)
        first_line = Condition(lambda: self.buffer.document.cursor_position_row == 0)

        def choose(step: int) -> None:
            self.offer.choose(step)
            self._show()

        def bind(names: str, do: Callable[[], None], when: Filter = offered) -> None:
            for name in names.split():
                keys.add(*name.split("+"), filter=when)(lambda event: do())

        bind("tab", lambda: None, Always())
        bind("tab escape+f escape+right c-right", lambda: self.buffer.insert_text(self.offer.word))
        bind("right end c-e c-f", lambda: self.buffer.insert_text(self.offer.shown))
        bind("escape+down down", lambda: choose(1))
        bind("escape+up", lambda: choose(-1))
        bind("up", lambda: choose(-1), offered & first_line)
        bind("c-s c-d", lambda: self._application.exit(), Always())
        bind("c-c <sigint>", lambda: self._interrupt(signal.SIGINT), Always())
        return keys

    def _interrupt(self, by: signal.Signals) -> None:
        self.exit_code = 128 + by
        if self._application.is_running and not self._application.is_done:
            self._application.exit()

"""Wrong options: exit code 2, the usage line and what is wrong."""

import pytest


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("bogus", "No such command 'bogus'."),
        ("train",
         "Invalid value: a text is needed, for example my.txt or builtin:python-stdlib; "
         "or --config (see `charlm config list`)"),
        ("train --resume", "Invalid value: --resume needs --run-dir, the folder of the run to resume"),
        ("train --resume --run-dir r --init-from c",
         "Invalid value: --init-from starts a new run; leave out --init-from or --resume"),
        ("train --config c --device tpu",
         "'tpu' is none of 'auto', 'cpu', 'cuda', 'cuda:1' (the second GPU) and so on."),
        ("train --confg c", "No such option: --confg"),
        ("sample", "Missing argument 'CKPT'."),
        ("sample r --prompt a --prompt-file b", "Invalid value: --prompt and --prompt-file exclude one another"),
        ("sample r --length -1", "Invalid value for '--length': "),
        ("sample r --length 9999999999999", "Invalid value for '--length': "),
        ("sample r --count 0", "Invalid value for '--count': "),
        ("sample r --count 10001", "Invalid value for '--count': "),
        ("sample r --seed -1", "Invalid value for '--seed': "),
        ("sample r --seed 9223372036854775808", "Invalid value for '--seed': "),
        ("sample r --temperature -1", "Invalid value for '--temperature': "),
        ("sample r --temperature nan", "Invalid value"),
        ("sample r --temperature inf", "Invalid value: --temperature: found inf; allowed: a finite number"),
        ("sample r --top-p 1.5", "Invalid value for '--top-p': "),
        ("sample r --top-p nan", "Invalid value"),
        ("sample r --min-p -0.1", "Invalid value for '--min-p': "),
        ("sample r --min-p 1.5", "Invalid value for '--min-p': "),
        ("sample r --min-p nan", "Invalid value"),
        ("sample r --top-k -1", "Invalid value for '--top-k': "),
        ("next", "Missing argument 'CKPT'."),
        ("next r --top 0", "Invalid value for '--top': "),
        ("eval r --split test --file f", "Invalid value: --split and --file exclude one another"),
        ("eval r --split dev", "'dev' is not one of 'train', 'valid', 'test'."),
        ("eval r --streams 0", "Invalid value for '--streams': "),
        ("eval r --dynamic-lr 0.1", "Invalid value: --dynamic-lr needs --dynamic"),
        ("eval r --dynamic-decay 0", "Invalid value: --dynamic-decay needs --dynamic"),
        ("eval r --dynamic-steps 5 --json", "Invalid value: --dynamic-steps needs --dynamic"),
        ("eval r --dynamic --dynamic-lr -1", "Invalid value for '--dynamic-lr': "),
        ("eval r --dynamic --dynamic-lr nan", "Invalid value"),
        ("eval r --dynamic --dynamic-lr inf", "Invalid value: --dynamic-lr: found inf; allowed: a finite number"),
        ("eval r --dynamic --dynamic-decay 1.5", "Invalid value for '--dynamic-decay': "),
        ("eval r --dynamic --dynamic-decay nan", "Invalid value"),
        ("eval r --dynamic --dynamic-steps 0", "Invalid value for '--dynamic-steps': "),
        ("plan", "Invalid value: a text is needed, for example my.txt"),
        ("config check", "a config is needed, for example lstm; `charlm config list` shows the others"),
        ("config show a --config b", "found two configs, a and --config b; allowed: one; leave out the other"),
        ("data fetch", "Missing argument 'NAME...'."),
        ("data info x --level word", "Invalid value: --level: found 'word'; allowed: char | byte"),
    ],
)  # fmt: skip
def test_usage(cli, words, text):
    assert text in cli(*words.split()).usage_error

"""charlm plan."""

from charlm.cli import usage
from charlm.cli.common import print_json, print_table
from charlm.new_run import NewRun, cost_of


def plan(
    text: usage.Text = None,
    minutes: usage.Minutes = None,
    config: usage.Config = None,
    lines: usage.Lines = False,
    overrides: usage.Overrides = None,
    device: usage.OwnDevice = None,
    json: usage.Json = False,
) -> None:
    """Show what a run will cost: sizes, parameters, memory, characters/s, time per epoch and of the run.

    Without --config, plans what `charlm train` would choose for the text and the minutes. Makes updates for
    about three seconds, at least 5, to measure them. Writes nothing except the cache.

    \b
    Examples:
      charlm plan my.txt --minutes 10
      charlm plan --config rhn
      charlm plan --config lstm my.txt --set model.cell.hidden=1024 --json
    """
    usage.refuse_if(config is None and text is None, usage.NO_TEXT)
    new = NewRun(text, minutes, config, usage.as_settings(overrides, lines, device))
    new.check_early()

    from charlm.system.process_group import process_group

    with process_group() as group:
        result = cost_of(new, group)
    if not group.is_first:
        return
    if json:
        print_json(result)
    else:
        from charlm.training.plan import cost_table

        print_table(cost_table(result))

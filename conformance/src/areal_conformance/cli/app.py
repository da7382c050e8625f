"""The sub-commands of `areal conformance`, by name; none is imported before it runs.

Knows: names and help lines.
Does not know: what they do.
"""

from __future__ import annotations

from cyclopts import App

app = App(
    name="conformance",
    help="Hold a backend to the contract, and get a verdict and a report.",
    help_epilogue="Start with: areal conformance run --backend NAME",
    help_format="plaintext",
    result_action="return_value",
    exit_on_error=False,
)
app.command("areal_conformance.cli.run:run", name="run", help="Check a backend and report the verdict.")
app.command("areal_conformance.cli.listing:show_list", name="list", help="List the checks.")
app.command("areal_conformance.cli.listing:explain", name="explain", help="Explain one check in full.")
app.command("areal_conformance.cli.reports:compare_reports", name="compare", help="Compare two reports.")
app.command("areal_conformance.cli.reports:verify", name="verify", help="Say whether a report still holds.")
app.command("areal_conformance.cli.reports:site", name="site", help="Put reports beside each other as web pages.")
app.command(
    "areal_conformance.cli.mutate:mutate", name="mutate", help="Change a backend's source; see what no check sees."
)
app.command("areal_proof.command:self_test", name="self-test", help="Test the suite on deliberately broken backends.")

ledger = App(name="ledger", help="Work on a ledger of known failures.", help_format="plaintext")
ledger.command("areal_conformance.cli.reports:suggest", name="suggest", help="Propose entries for failed checks.")
app.command(ledger)

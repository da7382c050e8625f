"""How the report looks: one style sheet, light and dark, no web fonts.

Knows: the classes of the page; the colours come from the charts, so that lines and text agree.
Does not know: what is on it.
"""

from __future__ import annotations

from areal_report.charts import DARK, LIGHT


def _variables(colours: dict[str, str]) -> str:
    return ";".join(f"{name}:{colour}" for name, colour in colours.items())


STYLE = (
    f"""
:root{{{_variables(LIGHT)};--bg:#f7f8fa;--card:#fff;--good:#2b8a57;--bad:#bf3b3b;--badbg:#fdf3f2;--warn:#a86412;
--warnbg:#fdf7ec;--code:#f4f5f8}}
@media(prefers-color-scheme:dark){{:root{{{_variables(DARK)};--bg:#12151b;--card:#1a1e26;--good:#66c794;--bad:#f08585;
--badbg:#2a1c1f;--warn:#e5b567;--warnbg:#28231a;--code:#141820}}}}
"""
    + """
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--text);font:15px/1.55 system-ui,sans-serif}
main{max-width:1040px;margin:0 auto;padding:40px 20px 80px}
header{display:flex;align-items:baseline;gap:4px 14px;flex-wrap:wrap;margin-bottom:24px}
header .more{flex-basis:100%}
h1{font-size:26px;font-weight:650;letter-spacing:-.01em;margin:0;overflow-wrap:anywhere}
h2{font-size:17px;font-weight:650;margin:40px 0 12px}
h3{font-size:14px;font-weight:600;margin:0}
.more{margin:0;color:var(--dim);font-size:13px;overflow-wrap:anywhere}
h2+.more{margin:-10px 0 12px}
.status{padding:1px 11px;border-radius:12px;border:1px solid var(--edge);color:var(--dim);font-size:13px}
.status.running{color:var(--c1);border-color:var(--c1)}
.status.finished{color:var(--good);border-color:var(--good)}
.status.failed,.status.crashed{color:var(--bad);border-color:var(--bad)}
.tiles{display:flex;flex-wrap:wrap;gap:18px 44px;margin:0 0 24px}
.tiles small{display:block;color:var(--dim);font-size:13px}
.tiles b{font-size:20px;font-weight:600;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
section,article{background:var(--card);border:1px solid var(--edge);border-radius:10px;padding:16px 18px;min-width:0}
section{margin:0 0 16px}
.pair,.three{display:grid;gap:16px;grid-template-columns:repeat(auto-fit,minmax(min(430px,100%),1fr))}
.three{grid-template-columns:repeat(auto-fit,minmax(min(280px,100%),1fr));align-items:start}
.pair section{margin:0}
svg{width:100%;height:auto;display:block;margin-top:8px}
.legend{display:flex;flex-wrap:wrap;gap:2px 16px;color:var(--dim);font-size:13px;margin-top:4px}
.legend i{display:inline-block;width:14px;height:3px;border-radius:2px;margin-right:6px;vertical-align:middle}
.cause{border-color:var(--bad);background:var(--badbg)}.cause h2,.warned h2{margin:0 0 6px;font-size:15px}
.cause h2{color:var(--bad)}.cause h3{margin-top:18px}
.cause .code{margin:0;font-size:13px;font-weight:600}.cause .code span{color:var(--dim);font-weight:400;margin-left:8px}
.cause pre.what{font-size:16px;background:none;padding:0;margin:4px 0}
.warned{border-color:var(--warn);background:var(--warnbg)}.warned h2{color:var(--warn)}
dl{display:grid;grid-template-columns:max-content 1fr;gap:6px 16px;margin:14px 0 0}
dt{color:var(--dim)}dd{margin:0;min-width:0}dd pre,td pre{margin:0;padding:0;background:none}
article h3{text-transform:capitalize;font-weight:500;color:var(--dim)}article h3 b{color:var(--text);margin-left:4px}
article.best{border-top:3px solid var(--good)}article.median{border-top:3px solid var(--dim)}
article.worst{border-top:3px solid var(--bad)}
pre{margin:10px 0 0;padding:10px 12px;border-radius:6px;background:var(--code);white-space:pre-wrap;
overflow-wrap:anywhere;font:13px/1.5 ui-monospace,monospace;max-height:420px;overflow-y:auto}
pre.given{background:none;padding:0;color:var(--dim);max-height:180px}
details{margin:0}summary{cursor:pointer;font-weight:600;font-size:14px}
table{border-collapse:collapse;width:100%;margin-top:10px;font-size:14px}
th,td{text-align:left;padding:4px 14px 4px 0;vertical-align:top;border-top:1px solid var(--edge);font-weight:400}
tr:first-child th,tr:first-child td{border-top:0}
th{color:var(--dim);white-space:nowrap}td{overflow-wrap:anywhere}td:last-child{width:100%}
.numbers td{font-variant-numeric:tabular-nums;white-space:nowrap}
svg text{font-variant-numeric:tabular-nums}.narrow{display:none}
@media(max-width:560px){.wide{display:none}.narrow{display:block}
main{padding:20px 12px 48px}dl{grid-template-columns:1fr}
.numbers{display:block;overflow-x:auto}}
@media print{body{background:#fff}section,article{break-inside:avoid}}
"""
)

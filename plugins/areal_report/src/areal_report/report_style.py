"""How the report looks: one style sheet, light and dark, no web fonts."""

STYLE = """
:root{--bg:#fbfbfd;--card:#fff;--text:#1b1f29;--dim:#5d6678;--edge:#e3e6ee;--s0:#9dbdf2;--s1:#1f5fd0;--s2:#d9730d;
--good:#17803d;--bad:#c02b2b}
@media(prefers-color-scheme:dark){:root{--bg:#12151c;--card:#1a1f29;--text:#e7eaf1;--dim:#98a2b6;--edge:#2c3341;
--s0:#3f6199;--s1:#74a7ff;--s2:#ffa24d;--good:#58c47d;--bad:#ff7b7b}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--text);font:15px/1.5 system-ui,sans-serif}
main{max-width:1080px;margin:0 auto;padding:24px 16px 64px}
header{display:flex;align-items:center;gap:16px;flex-wrap:wrap}
h1{font-size:24px;margin:0}h2{font-size:15px;margin:0 0 8px}
.status{margin:0;padding:1px 12px;border-radius:12px;border:1px solid var(--edge);color:var(--dim)}
.status.finished{color:var(--good);border-color:var(--good)}
.status.failed,.status.crashed{color:var(--bad);border-color:var(--bad)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(160px,1fr));gap:12px;margin:16px 0}
.tiles div,section{background:var(--card);border:1px solid var(--edge);border-radius:8px;padding:12px 14px}
.tiles small{display:block;color:var(--dim)}.tiles b{font-size:17px;overflow-wrap:anywhere}
section{margin:0 0 16px;min-width:0}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(440px,100%),1fr));gap:16px;margin-bottom:16px}
.pair section{margin:0}
svg{width:100%;height:auto;display:block}
svg text{fill:var(--dim);font-size:12px}svg text.value{fill:var(--text)}
.wide svg text{font-size:9px}
.grid{stroke:var(--edge)}.axis{stroke:var(--dim)}
.line{fill:none;stroke-width:2;stroke-linejoin:round}.line.thin{stroke-width:1}
.line.s0{stroke:var(--s0)}.line.s1{stroke:var(--s1)}.line.s2{stroke:var(--s2)}
.pair .line.s0{stroke:var(--s1)}.pair .line.s1{stroke:var(--s2)}.pair .line.s2{stroke:var(--good)}
.dot.s0{fill:var(--s0)}.dot.s1{fill:var(--s1)}.dot.s2{fill:var(--s2)}.bar{fill:var(--s1)}
.legend{display:flex;flex-wrap:wrap;gap:4px 16px;color:var(--dim);font-size:13px;margin-bottom:4px}
.legend i{display:inline-block;width:14px;height:3px;margin-right:6px;vertical-align:middle}
.legend .s0{background:var(--s0)}.legend .s1{background:var(--s1)}.legend .s2{background:var(--s2)}
.pair .legend .s0{background:var(--s1)}.pair .legend .s1{background:var(--s2)}.pair .legend .s2{background:var(--good)}
.none{color:var(--dim);margin:0}
summary{cursor:pointer;font-weight:600}
table{border-collapse:collapse;width:100%;margin-top:8px}
th,td{text-align:left;padding:3px 12px 3px 0;vertical-align:top;border-top:1px solid var(--edge);font-weight:400}
th{color:var(--dim);width:1%;white-space:nowrap}
td{width:1%;white-space:nowrap}td:last-child{width:auto;white-space:normal;overflow-wrap:anywhere}
pre{margin:8px 0 0;overflow-x:auto;font:13px/1.45 ui-monospace,monospace}td pre{margin:0;white-space:pre-wrap}
"""

"""How report.html looks and how its filter works: one style sheet and one script, nothing fetched.

Knows: colours, light and dark; the filter by outcome and words.
Does not know: any report.
"""

STYLE = """
:root{--bg:#fbfbfd;--card:#fff;--text:#1b1f29;--dim:#5d6678;--edge:#e3e6ee;--link:#1f5fd0;
--pass:#17803d;--fail:#c02b2b;--error:#8a1c5b;--unexpected-pass:#b3530a;--known-fail:#a8760a;--inconclusive:#5b54b8;
--not-run:#7a8397;--skip:#b3bac9}
@media(prefers-color-scheme:dark){:root{--bg:#12151c;--card:#1a1f29;--text:#e7eaf1;--dim:#98a2b6;--edge:#2c3341;
--link:#74a7ff;--pass:#58c47d;--fail:#ff7b7b;--error:#ef7fc0;--unexpected-pass:#ffa24d;--known-fail:#e3bb4f;
--inconclusive:#a29bf5;--not-run:#8b94a8;--skip:#4a5468}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--text);font:15px/1.5 system-ui,sans-serif}
main{max-width:1080px;margin:0 auto;padding:24px 16px 64px}
header{display:flex;align-items:center;gap:16px;flex-wrap:wrap}
h1{font-size:24px;margin:0}h2{font-size:17px;margin:28px 0 8px}
.verdict{padding:2px 14px;border-radius:14px;border:1px solid;font-weight:600}
.success{color:var(--pass)}.failure{color:var(--fail)}.partial{color:var(--known-fail)}.incomplete{color:var(--not-run)}
.line{font-size:16px;margin:12px 0 16px}
.card{background:var(--card);border:1px solid var(--edge);border-radius:8px;padding:12px 14px;margin:0 0 12px}
.bars{display:grid;grid-template-columns:max-content 1fr max-content;gap:6px 12px;align-items:center}
.bar{display:flex;height:18px;border-radius:4px;overflow:hidden;gap:1px;background:var(--edge)}
.bar i{display:block;min-width:3px}
.bars small{color:var(--dim)}
.tools{position:sticky;top:0;background:var(--bg);padding:8px 0;display:flex;flex-wrap:wrap;gap:8px;z-index:1}
.tools input{flex:1 1 220px;font:inherit;color:inherit;background:var(--card);border:1px solid var(--edge);
border-radius:6px;padding:4px 10px}
.tools button{font:inherit;font-size:14px;color:var(--text);background:var(--card);border:1px solid var(--edge);
border-radius:14px;padding:2px 12px;cursor:pointer}
.tools button[aria-pressed=false]{opacity:.4;text-decoration:line-through}
.dot{display:inline-block;width:10px;height:10px;border-radius:5px;margin-right:6px}
.o-pass{background:var(--pass)}.o-fail{background:var(--fail)}.o-error{background:var(--error)}
.o-unexpected-pass{background:var(--unexpected-pass)}.o-known-fail{background:var(--known-fail)}
.o-inconclusive{background:var(--inconclusive)}.o-not-run{background:var(--not-run)}.o-skip{background:var(--skip)}
.area{margin:0 0 12px}.area>h3{font-size:15px;margin:0}.laws{color:var(--dim);font-size:13px;margin:0 0 6px}
details.check{border-top:1px solid var(--edge);padding:4px 0}
details.check summary{cursor:pointer;display:grid;grid-template-columns:16px minmax(0,1fr) max-content;gap:2px 8px;
list-style:none;align-items:baseline}
details.check summary::-webkit-details-marker{display:none}
details.check code{font:13px ui-monospace,monospace;overflow-wrap:anywhere}
details.check .claim{display:block;color:var(--dim)}
details.check .end{color:var(--dim);font-size:13px;text-align:right}
details.check .more{margin:4px 0 8px 24px}
pre{margin:6px 0;padding:8px 10px;background:var(--bg);border:1px solid var(--edge);border-radius:6px;overflow-x:auto;
white-space:pre-wrap;overflow-wrap:anywhere;font:13px/1.45 ui-monospace,monospace}
table{border-collapse:collapse;width:100%}
th,td{text-align:left;padding:3px 12px 3px 0;vertical-align:top;border-top:1px solid var(--edge);font-weight:400;
overflow-wrap:anywhere}
th{color:var(--dim)}tr:first-child>*{border-top:0}
summary{cursor:pointer}details.card>summary{font-weight:600}
footer{color:var(--dim);margin-top:32px}
[hidden]{display:none!important}
@media(max-width:640px){.bars{grid-template-columns:1fr}.bars small{margin-bottom:6px}}
@media print{.tools{display:none}}
"""

SCRIPT = """
(()=>{
const buttons=[...document.querySelectorAll('.tools button')],words=document.querySelector('.tools input');
const checks=[...document.querySelectorAll('details.check')],areas=[...document.querySelectorAll('.area')];
const told=document.querySelector('#shown');
function show(){
 const on=new Set(buttons.filter(b=>b.getAttribute('aria-pressed')==='true').map(b=>b.dataset.outcome));
 const asked=words.value.toLowerCase().split(/\\s+/).filter(Boolean);
 let count=0;
 for(const check of checks){
  const text=check.dataset.text;
  check.hidden=!on.has(check.dataset.outcome)||!asked.every(word=>text.includes(word));
  count+=!check.hidden;
 }
 for(const area of areas)area.hidden=![...area.querySelectorAll('details.check')].some(check=>!check.hidden);
 told.textContent=count+' of '+checks.length+' shown';
}
for(const button of buttons)button.addEventListener('click',()=>{
 button.setAttribute('aria-pressed',String(button.getAttribute('aria-pressed')!=='true'));show();});
words.addEventListener('input',show);show();
})();
"""

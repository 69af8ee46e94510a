"""The style of everything that brickprof shows in a notebook.

Nothing is asked about the theme: text has the colour of the text around it, rules and surfaces are grey that lets the
background through, and red, green and amber are drawn towards the colour of the text. So it is right on light and on
dark, in JupyterLab, VS Code, Colab and an exported page. Every rule is bound to ``.brickprof-out``.
"""

from __future__ import annotations

_RULES = """
& {font: 14px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; max-width: 1040px; margin: 4px 0;
 --bad: #d1343f; --good: #2b9348; --open: #b7791f; --line: rgba(127,127,127,.3); --soft: rgba(127,127,127,.09)}
@supports (color: color-mix(in srgb, red, blue)) {
 & {--bad: color-mix(in srgb, #e5404c 78%, currentColor); --good: color-mix(in srgb, #2ea44f 72%, currentColor);
 --open: color-mix(in srgb, #d29922 70%, currentColor)} }
& p {margin: 0 0 6px} & .head {font-size: 17px; font-weight: 600; margin: 0 0 4px}
& .dim {opacity: .72; font-size: 12.5px} & code {font: 12px ui-monospace, Menlo, Consolas, monospace;
 background: var(--soft); color: inherit; border-radius: 4px; padding: 1px 4px; overflow-wrap: anywhere}
& .bad {color: var(--bad)} & .good {color: var(--good)} & .open {color: var(--open)}
& .split {display: flex; flex-wrap: wrap; gap: 8px 28px; align-items: flex-start}
& .split > * {flex: 1 1 420px; min-width: 0} & .pictures svg {display: block; margin: 0 0 8px}
& .facts {display: grid; grid-template-columns: max-content 1fr; gap: 2px 14px; margin: 6px 0 10px}
& .facts > span:nth-child(odd) {opacity: .72} & .facts > span {min-width: 0; overflow-wrap: anywhere}
& ol.whys.whys {list-style: none; margin: 0 0 10px; padding: 0 0 0 5px}
& .whys > li {border-left: 2px solid var(--line); margin: 0; padding: 1px 0 8px 14px; position: relative}
& .whys > li::before {content: ""; position: absolute; left: -5px; top: 9px; width: 8px; height: 8px;
 border-radius: 50%; background: currentColor; opacity: .45}
& .whys > li.end {border-color: transparent} & .whys > li.end::before {background: var(--bad); opacity: 1}
& .why {font-weight: 600; margin: 0} & .whys p {margin: 0 0 2px; overflow-wrap: anywhere}
& details {margin: 2px 0} & summary {cursor: pointer; font-size: 12.5px; overflow-wrap: anywhere}
& summary:focus-visible {outline: 2px solid #3f83c8; outline-offset: 2px; border-radius: 3px}
& details.finding {border-top: 1px solid var(--line); padding: 6px 0} & details.finding > summary {font-size: 14px}
& .wide {overflow-x: auto} & table {border-collapse: collapse; border: 0; margin: 4px 0; font-size: 12.5px;
 display: table; table-layout: auto}
& th, & td {text-align: left; padding: 3px 10px 3px 0; border: 0; border-bottom: 1px solid var(--line);
 vertical-align: top; background: none; color: inherit; max-width: 46em; white-space: normal; overflow-wrap: break-word}
& th {font-weight: 600; opacity: .72; white-space: nowrap} & td > span {white-space: nowrap}
& td:first-child {min-width: 9em} & .n {text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap}
& tbody tr, & tbody tr:nth-child(odd), & tbody tr:hover {background: none}
"""

CLASS = "brickprof-out"
STYLE = f"<style>{_RULES.replace('&', f'.{CLASS}')}</style>"

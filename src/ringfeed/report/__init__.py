"""One page that shows a traced run: where the time went, and what to change. Its charts are drawn by the package bokeh.

    traced       begins a trace, and adds what the loader says of itself
        ──▶ timeline     a trace, read and checked: arrays of what was drawn
        ──▶ figures      shares, the longest waits, time by intervals
        ──▶ charts       bokeh's pictures of them
        ──▶ words, page  the verdict in headings and lines; one file of HTML

bokeh was chosen by measurement. A timeline of 10^5 events is a page of 3.5 MB that Chromium draws in 2 s on two busy
cores; plotly's has 12 MB and takes 9 s with WebGL, and 8 MB and 17 s without.
"""

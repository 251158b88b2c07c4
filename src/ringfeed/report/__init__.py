"""One page that shows a traced run: where the time went, and what to change. Its charts are drawn by the package bokeh.

    traced       begins a trace, and adds what the loader says of itself
        ──▶ timeline     a trace, read and checked: arrays of what was drawn
        ──▶ figures      shares, the longest waits, time by intervals
        ──▶ charts       bokeh's pictures of them
        ──▶ words, page  the verdict in headings and lines; one file of HTML

bokeh was chosen by measurement (bench/studies/page.py). With 10^5 events the whole page has 5.4 MB; plotly's timeline
alone has 11.9 MB and takes 3 times as long to be drawn, with WebGL, or 12 times without.
"""

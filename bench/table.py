"""Tables of measurements, as Markdown, from the JSON lines of train_step, products_only, inference and peers.py.

A line is a dict with "workload" and "peer", and either "us" or "error". Lines of several rounds are taken together: the
median counts.
"""
import statistics

PRODUCTS = "products only"
REFERENCE_OF_MEMORY = "pytorch eager"
UNFUSED = "fusegrad unfused"


def row_of(line):
    """What a row is: the workload, for inference with its activation."""
    return f"{line['workload']} {line['activation']}" if "activation" in line else line["workload"]


def is_ours(peer):
    """True for fusegrad's columns that are meant to be fast."""
    return peer.startswith("fusegrad") and not peer.startswith(UNFUSED)


def is_peer(peer):
    return not peer.startswith("fusegrad") and peer != PRODUCTS


def medians(lines, key="us"):
    """{(row, peer): median of `key`} over the lines that have it."""
    values = {}
    for line in lines:
        if line.get(key) is not None:
            values.setdefault((row_of(line), line["peer"]), []).append(line[key])
    return {cell: statistics.median(of_cell) for cell, of_cell in values.items()}


def errors(lines):
    """{(row, peer): text} of cells that failed in some round."""
    return {(row_of(line), line["peer"]): line["error"] for line in lines if "error" in line}


def unique(values):
    return list(dict.fromkeys(values))


def products_of(row, us):
    """The products-only time of a row: that of its workload, whatever the activation or the mask."""
    return us.get((row, PRODUCTS)) or us.get((row.split(" ")[0], PRODUCTS))


def number(us):
    return f"{us:.0f}" if us >= 100 else f"{us:.1f}"


def ratio(ours, theirs):
    return f"{ours / theirs:.2f}" if ours and theirs else ""


def best(cells, row, wanted):
    """(peer, value) of the smallest value in the row among the columns that are wanted; (None, None) without any."""
    found = [(value, peer) for (of_row, peer), value in cells.items() if of_row == row and wanted(peer)]
    value, peer = min(found, default=(None, None))
    return peer, value


def markdown(lines):
    """The table: rows are workloads; columns are fusegrad's, the products and the peers, microseconds; then ratios of the
    fastest of fusegrad's columns, those that there are. The fastest column of a row, products aside, is bold. Failures
    are named below it."""
    us, peak, failed = medians(lines), medians(lines, "peak_mib"), errors(lines)
    rows = unique(row_of(line) for line in lines if line["peer"] != PRODUCTS)
    peers = unique(line["peer"] for line in lines)
    columns = sorted(peers, key=lambda peer: (not peer.startswith("fusegrad"), peer != PRODUCTS))
    heads = ["workload", *columns, "to the best peer", "to products only", "peak memory to PyTorch eager"]
    table = [heads, ["---"] * len(heads)]
    notes = []

    for row in rows:
        fastest, _ = best(us, row, lambda peer: peer != PRODUCTS)
        cells = []
        for peer in columns:
            value = products_of(row, us) if peer == PRODUCTS else us.get((row, peer))
            text = number(value) if value else ""
            reason = failed.get((row.split(" ")[0] if peer == PRODUCTS else row, peer))
            if reason:
                notes.append(f"{row}, {peer}: {reason}")
                text = f"{text} failed".strip()
            cells.append(f"**{text}**" if peer == fastest else text)
        our_peer, ours = best(us, row, is_ours)
        _, theirs = best(us, row, is_peer)
        memory = ratio(peak.get((row, our_peer)), peak.get((row, REFERENCE_OF_MEMORY)))
        table.append([row, *cells, ratio(ours, theirs), ratio(ours, products_of(row, us)), memory])

    kept = [i for i in range(len(heads)) if any(cells[i] for cells in table[2:])]
    text = "\n".join("| " + " | ".join(cells[i] for i in kept) + " |" for cells in table) + "\n"
    if notes:
        text += "\nFailed, in one round or more:\n\n" + "".join(f"- {note}\n" for note in notes)
    return text


def spread(lines):
    """The largest ratio of a cell's slowest to its fastest round, and the cell: what a ratio in the table is good for.
    (1, None) if nothing was measured twice."""
    values = {}
    for line in lines:
        if line.get("us") is not None:
            values.setdefault((row_of(line), line["peer"]), []).append(line["us"])
    return max(((max(of_cell) / min(of_cell), cell) for cell, of_cell in values.items() if len(of_cell) > 1),
               default=(1, None))

"""Program order after a rewrite."""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from torch.fx import Graph, Node


def sort_stably(graph: Graph, place: Mapping[Node, tuple[int, int]]) -> None:
    """Put nodes into an order in which every value comes before its readers, in place.

    Of the nodes that could come next, the one of the smallest ``place`` does.
    """
    nodes = list(graph.nodes)
    missing = {node: len(node.all_input_nodes) for node in nodes}
    ready = [(place[node], index) for index, node in enumerate(nodes) if missing[node] == 0]
    heapq.heapify(ready)
    index_of = {node: index for index, node in enumerate(nodes)}
    output = nodes[-1]
    while ready:
        _, index = heapq.heappop(ready)
        node = nodes[index]
        if node is not output:
            output.prepend(node)
        for user in node.users:
            missing[user] -= 1
            if missing[user] == 0:
                heapq.heappush(ready, (place[user], index_of[user]))

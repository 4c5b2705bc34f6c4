"""A tree policy of another package: a chain of best guesses with siblings at every step.

`pip install ./examples/comb`, then `yggrt run model.ygg --tree comb:depth=4,teeth=2`.
"""

from yggrt.core.schema import TreeSpec
from yggrt.core.spec import size
from yggrt.core.tree import TokenTree
from yggrt.policies import Policy


class Comb(Policy):
    keys = {"depth": size(), "teeth": size()}  # noqa: RUF012
    example = "comb:depth=4,teeth=2"

    def read(self, values):
        depth, teeth = values["depth"], values["teeth"]
        return TreeSpec(policy="comb", depth=depth, width=teeth, verify=1 + depth * teeth)

    def write(self, spec):
        return {"depth": spec.depth, "teeth": spec.width}

    def steps(self, spec):
        return (1,) * spec.depth

    def grow(self, root_token, spec, drafter, min_score=0.0):
        tokens, parents, scores, path, spine = [root_token], [-1], [1], (), 0
        for _ in range(spec.depth):
            [found] = drafter.candidates([path], spec.width)
            first = len(tokens)
            for token, probability in found:
                score = scores[spine] * probability
                if score >= min_score:
                    tokens.append(token)
                    parents.append(spine)
                    scores.append(score)
            if len(tokens) == first:
                break
            spine, path = first, (*path, tokens[first])
        return TokenTree(tuple(tokens), tuple(parents), tuple(scores))

    def settings(self, room):
        return [self.read({"depth": d, "teeth": t}) for d in (2, 4, 8) for t in (2, 4)]

//go:build linux

package main

import (
	"context"
	"fmt"
	"strings"
)

// roundsOfPrincipals is how often each round of the others these are measured: what
// they differ by is less than what the machine does from one minute to the next.
const roundsOfPrincipals = 3

// principals measures what it costs to come with a JWT in place of a token of ours, and
// to have a deletion budget.
func (b *bench) principals(ctx context.Context, r *report, s *store) error {
	jwt, settings, err := issueJWT(b.folder)
	if err != nil {
		return err
	}
	var contenders []*httpContender
	for _, p := range []struct {
		title, token string
		settings     []string
	}{{plantstore, s.token, nil}, {byJWT, jwt, settings}, {withBudget, s.budgeted, nil}} {
		c, err := b.startService(ctx, p.title, b.service, s, home, p.settings...)
		if err != nil {
			return err
		}
		defer c.process.Kill()
		c.token = p.token
		contenders = append(contenders, c)
	}
	for _, n := range []int{8, 32, 128} {
		for _, c := range contenders {
			r.principals = append(r.principals, &trial{contender: c, store: s, clients: n})
		}
	}
	return b.measure(ctx, r.principals, b.duration, roundsOfPrincipals*b.rounds)
}

// ofOpaque returns the median of the ratios of one figure to that of a token of ours
// without a budget in the same round.
func (r *report) ofOpaque(t *trial, figure func(measurement) float64) float64 {
	opaque := find(r.principals, plantstore, t.clients)
	ratios := make([]float64, len(t.rounds))
	for i, m := range t.rounds {
		ratios[i] = figure(m) / figure(opaque.rounds[i])
	}
	return median(ratios)
}

func rateOf(m measurement) float64 { return m.rate }
func cpuOf(m measurement) float64  { return m.service + m.database }

func (r *report) writePrincipals(b *strings.Builder) {
	if len(r.principals) == 0 {
		return
	}
	fmt.Fprintf(b, "### JWTs and budgets\n\nBeside the database. A ratio is the median of those of %d rounds, each to the first line in the same round. "+
		"CPU is that of service and database together.\n\n"+
		"| connections | | deletes/s | rate: of the first | p50, ms | CPU s for 1,000: service | database | CPU: of the first |\n|--:|:--|--:|--:|--:|--:|--:|--:|\n",
		len(r.principals[0].rounds))
	for _, t := range r.principals {
		fmt.Fprintf(b, "| %d | %s | %s | %.2f | %s | %.3f | %.3f | %.2f |\n", t.clients, t.title(), count(int64(t.rate())), r.ofOpaque(t, rateOf),
			milliseconds(t.p50()), t.service(), t.database(), r.ofOpaque(t, cpuOf))
	}
	b.WriteString("\n")
}

// principalTargets are what JWTs and budgets may cost.
func (r *report) principalTargets() (targets []target) {
	for _, t := range r.principals {
		switch {
		case t.is(byJWT):
			targets = append(targets, target{what: fmt.Sprintf("rate at %d with a JWT, of that with a token", t.clients), measured: r.ofOpaque(t, rateOf), format: "%.2f", bound: 0.95})
		case t.is(withBudget):
			targets = append(targets, target{what: fmt.Sprintf("rate at %d with a budget, of that without", t.clients), measured: r.ofOpaque(t, rateOf), format: "%.2f", bound: 0.9})
		}
	}
	return targets
}

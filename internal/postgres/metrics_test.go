package postgres

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"plantstore/internal/pgtest"
)

// What deletions meet in the database is counted, and Collect shows it.
func TestEveryMetricCounts(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	s := newStore(t, database)
	s.exec(t, `CREATE TABLE public.orders (plant bigint REFERENCES public.plants); CREATE INDEX ON public.orders (plant)`)
	registry := prometheus.NewRegistry()
	registry.MustRegister(s.DB)
	counted := make(map[string]bool) // by a metric's name: it was not 0 once
	shown := func() map[string]float64 {
		t.Helper()
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		values := make(map[string]float64)
		for _, f := range families {
			for _, m := range f.GetMetric() {
				name := f.GetName()
				for _, l := range m.GetLabel() {
					name += " " + l.GetValue()
				}
				values[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetHistogram().GetSampleSum()
				counted[f.GetName()] = counted[f.GetName()] || values[name] != 0
			}
		}
		return values
	}
	check := func(when string, want map[string]float64) {
		t.Helper()
		got := shown()
		for name, n := range want {
			if v, ok := got[name]; !ok || v != n {
				t.Errorf("%s, %s is %v, shown: %t; want %v", when, name, v, ok, n)
			}
		}
	}
	for _, row := range meanings {
		if row.word != "" {
			check("at the start", map[string]float64{"plantstore_attempts_failed_total " + row.word: 0})
		}
	}
	check("at the start", map[string]float64{"plantstore_batch_size": 0, "plantstore_batches_in_flight": 0,
		"plantstore_token_snapshot_age_seconds": 0})

	id := s.plant(t, 2)
	s.exec(t, `INSERT INTO public.orders VALUES ($1)`, int64(id))
	if _, err := s.Delete(t.Context(), s.of(id, "referenced")); outcomeOf(err) != "referenced orders" {
		t.Errorf("a plant that is referred to: %v", err)
	}
	check("after a refusal", map[string]float64{"plantstore_attempts_failed_total referenced": 1, "plantstore_batch_size": 1, "plantstore_batches_in_flight": 0})
	pid, release := holder(t, database, `SELECT FROM public.plants WHERE id = $1 FOR UPDATE`, int64(id)+1)
	done := make(chan error, 1)
	go func() {
		_, err := s.Delete(context.Background(), s.of(id+1, "key"))
		done <- err
	}()
	pgtest.AwaitBlocked(t, s.admin, pid, 1)
	check("in a batch", map[string]float64{"plantstore_batches_in_flight": 1, "plantstore_pool_connections batch in_use": 1})
	release()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := s.tokens.poll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if age := shown()["plantstore_token_snapshot_age_seconds"]; age <= 0 {
		t.Errorf("the tokens' age is %v after a poll; want more than 0", age)
	}
	check("at the end", map[string]float64{"plantstore_batch_size": 2, "plantstore_pool_connections control idle": 1})
	for name, pool := range map[string]*pgxpool.Pool{"batch": s.batch, "solo": s.solo, "outcomes": s.outcomes, "control": s.control} {
		check("at the end", map[string]float64{"plantstore_pool_connections " + name + " max": float64(pool.Config().MaxConns)})
	}
	for name, ok := range counted {
		if !ok {
			t.Errorf("nothing here counts %s", name)
		}
	}
}

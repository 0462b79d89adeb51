package postgres

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"plantstore/internal/pgtest"
)

// Failed attempts, retries and waits of deletions are counted, and Collect shows them.
func TestEveryMetricCounts(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	l := patient
	l.batch = time.Minute // so that a lone deletion returns after its batch
	s := limitedStore(t, l, database)
	registry := prometheus.NewRegistry()
	registry.MustRegister(s.DB)
	// check compares some values, and returns all.
	check := func(when string, want map[string]float64) map[string]float64 {
		t.Helper()
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := make(map[string]float64)
		for _, f := range families {
			for _, m := range f.GetMetric() {
				name := f.GetName()
				for _, l := range m.GetLabel() {
					name += " " + l.GetValue()
				}
				got[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetHistogram().GetSampleSum()
			}
		}
		for name, n := range want {
			if v, ok := got[name]; !ok || v != n {
				t.Errorf("%s, %s is %v, shown: %t; want %v", when, name, v, ok, n)
			}
		}
		return got
	}
	start := map[string]float64{"plantstore_batch_size": 0, "plantstore_batches_in_flight": 0, "plantstore_token_snapshot_age_seconds": 0}
	for _, row := range meanings {
		if row.word != "" {
			start["plantstore_attempts_failed_total "+row.word] = 0
		}
	}
	check("at the start", start)
	id := s.plant(t, 2)
	s.exec(t, `CREATE TABLE public.orders (plant bigint REFERENCES public.plants)`)
	s.exec(t, `INSERT INTO public.orders VALUES ($1)`, int64(id))
	s.expect(t, s.of(id, "referenced"), "referenced orders")
	if err := s.tokens.poll(t.Context()); err != nil {
		t.Fatal(err)
	}
	pid, release := holder(t, database, `SELECT FROM public.plants WHERE id = $1 FOR UPDATE`, int64(id)+1)
	result := s.begin(context.Background(), s.of(id+1, "key"))
	pgtest.AwaitBlocked(t, s.admin, pid, 1)
	want := map[string]float64{"plantstore_attempts_failed_total referenced": 1, "plantstore_batch_size": 2, "plantstore_batches_in_flight": 1,
		"plantstore_pool_connections batch in_use": 1, "plantstore_pool_connections control idle": 1}
	for n, name := range []string{"batch", "solo", "outcomes", "control"} {
		want["plantstore_pool_connections "+name+" max"] = float64(s.pools()[n].Config().MaxConns)
	}
	if age := check("in a batch", want)["plantstore_token_snapshot_age_seconds"]; age <= 0 {
		t.Errorf("in a batch, the tokens' snapshot is %v s old; want more", age)
	}
	release()
	if got := <-result; got != "deleted" {
		t.Errorf("the locked plant: %s; want deleted", got)
	}
	check("at the end", map[string]float64{"plantstore_batches_in_flight": 0})
}

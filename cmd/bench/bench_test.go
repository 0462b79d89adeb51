//go:build linux

package main

import (
	"strings"
	"testing"
)

func TestBenchRejectsBadMeasurements(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name        string
		load        load
		every, gone int64
		want        string // part of the error; empty: 980 deletions
	}{
		{"all deleted", load{Requests: 980}, 0, 980, ""},
		{"eight in flight at the end", load{Requests: 980}, 0, 988, ""},
		{"refused as often as referred to", load{Requests: 1000, Refused: 20}, 50, 980, ""},
		{"a rare refusal before its turn", load{Requests: 981, Refused: 1}, 10_000, 980, ""},
		{"one 404", load{Requests: 981, Refused: 1}, 0, 980, "1 of 981 answers were errors"},
		{"more refused than referred to", load{Requests: 1020, Refused: 40}, 50, 980, "40 of 1020 answers were errors, want 20"},
		{"a broken connection", load{Requests: 980, Broken: 1}, 0, 980, "1 requests without an answer"},
		{"204 for plants that are there", load{Requests: 980}, 0, 979, "980 deletions were reported, but 979 plants are gone"},
		{"more gone than in flight", load{Requests: 980}, 0, 991, "991 plants are gone"},
		{"nothing deleted", load{}, 0, 0, "0 of 0 answers were errors"},
	} {
		got, err := deletedOf(test.load, test.every, test.gone, 8)
		if test.want == "" && (err != nil || got != 980) || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: got %d, error %v; want an error with %q", test.name, got, err, test.want)
		}
	}
}

// TestTableShowsTheMedianOfShares has a machine that is half as fast in each round as in the one
// before: the share of the median rates would be 1.00.
func TestTableShowsTheMedianOfShares(t *testing.T) {
	t.Parallel()
	rates := func(name string, base *trial, rates ...float64) *trial {
		t := &trial{contender: &contender{name: name}, clients: 8, base: base}
		for _, r := range rates {
			t.rounds = append(t.rounds, measurement{rate: r})
		}
		return t
	}
	bare := rates(bareName, nil, 100, 50, 25)
	s := &row{title: "beside it", wanted: map[int]float64{8: .85}, trials: []*trial{bare, rates(plantstore, bare, 80, 50, 20)}}
	want := "| clients | 1 | 8 |\n|:--|--:|--:|\n| beside it |  | 0.80 |\n| **wanted** |  | **0.85** |\n\n**Beside it**\n"
	if got := markdown([]*row{s}, []int{1, 8}); !strings.HasPrefix(got, want) {
		t.Errorf("got\n%s\nwant it to begin with\n%s", got, want)
	}
}

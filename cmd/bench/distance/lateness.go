//go:build linux

package main

import "time"

// lateness counts by how much pieces were released too late.
type lateness struct {
	First bool // the thread runs before others
	// counts is by microsecond; the last has everything from there on.
	counts [20_001]int64
}

func (l *lateness) add(d time.Duration) { l.counts[min(int(d.Microseconds()), len(l.counts)-1)]++ }

// A summary is what is told of it. Times are in microseconds.
type summary struct {
	First                bool  // the thread ran before others
	Pieces               int64 // how many
	P50, P99, P999, Most int64
}

func (l *lateness) sum() summary {
	s := summary{First: l.First}
	for _, n := range l.counts {
		s.Pieces += n
	}
	var passed int64
	for late, n := range l.counts {
		if n == 0 {
			continue
		}
		passed += n
		s.Most = int64(late)
		for _, share := range []struct {
			thousandths int64
			at          *int64
		}{{500, &s.P50}, {990, &s.P99}, {999, &s.P999}} {
			// The smallest time that so many pieces do not exceed.
			if (passed-n)*1000 < s.Pieces*share.thousandths && passed*1000 >= s.Pieces*share.thousandths {
				*share.at = int64(late)
			}
		}
	}
	return s
}

package plant

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// A Budget limits how many plants a principal deletes in each period. A period begins with its
// first deletion. The zero Budget is no limit.
type Budget struct {
	Most   int64
	Period time.Duration
}

// LongestPeriod is the longest period of a budget.
const LongestPeriod = 7 * 24 * time.Hour

// shortestPeriod is the shortest period of a budget. For less there is the rate limit.
const shortestPeriod = time.Second

// mostPlants is the largest budget.
const mostPlants = 1_000_000_000

// UnmarshalText reads a budget such as 500/1h, 20/90s or 10000/7d, or none. An empty text is an
// error: a script with an unset variable must not remove a limit. Its errors are for a person.
func (b *Budget) UnmarshalText(text []byte) error {
	s := string(text)
	if s == "none" {
		*b = Budget{}
		return nil
	}
	most, period, _ := strings.Cut(s, "/")
	n, err := strconv.ParseInt(most, 10, 64)
	var d time.Duration
	if err == nil {
		d, err = parsePeriod(period)
	}
	switch {
	case err != nil:
		return fmt.Errorf("%q is not a deletion budget such as 500/1h or 10000/7d", s)
	case n < 1 || n > mostPlants:
		return fmt.Errorf("the deletion budget %s is for %d plants: it must be for 1 to %d", s, n, mostPlants)
	case d < shortestPeriod:
		return fmt.Errorf("the deletion budget %s has a period of %s: it must be at least %s", s, period, shortestPeriod)
	case d > LongestPeriod:
		return fmt.Errorf("the deletion budget %s has a period of %s: it must be at most 7d", s, period)
	}
	*b = Budget{n, d}
	return nil
}

func parsePeriod(s string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(s, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 16)
		return time.Duration(n) * 24 * time.Hour, err
	}
	return time.ParseDuration(s)
}

// String writes a budget as UnmarshalText reads it; none as "none".
func (b Budget) String() string {
	if b == (Budget{}) {
		return "none"
	}
	period := b.Period.String()
	switch day := 24 * time.Hour; {
	case b.Period%day == 0:
		period = strconv.FormatInt(int64(b.Period/day), 10) + "d"
	case b.Period%time.Hour == 0:
		period = strings.TrimSuffix(period, "0m0s")
	case b.Period%time.Minute == 0:
		period = strings.TrimSuffix(period, "0s")
	}
	return fmt.Sprintf("%d/%s", b.Most, period)
}

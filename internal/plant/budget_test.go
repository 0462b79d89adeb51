package plant

import (
	"strings"
	"testing"
	"time"
)

func TestBudgetsAreReadAsTheyAreWritten(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for _, tt := range []struct {
		text    string
		budget  Budget
		written string // empty: as it was read
	}{
		{"500/1h", Budget{500, time.Hour}, ""},
		{"10000/7d", Budget{10000, 7 * day}, ""},
		{"20/90s", Budget{20, 90 * time.Second}, "20/1m30s"},
		{"20/90m", Budget{20, 90 * time.Minute}, "20/1h30m"},
		{"20/36h", Budget{20, 36 * time.Hour}, ""},
		{"20/48h", Budget{20, 2 * day}, "20/2d"},
		{"20/10m", Budget{20, 10 * time.Minute}, ""},
		{"20/1500ms", Budget{20, 1500 * time.Millisecond}, "20/1.5s"},
		{"1/1s", Budget{1, time.Second}, ""},
		{"none", Budget{}, ""},
		{"1000000000/168h", Budget{1_000_000_000, LongestPeriod}, "1000000000/7d"},
	} {
		if tt.written == "" {
			tt.written = tt.text
		}
		got, again := Budget{2, time.Minute}, Budget{2, time.Minute}
		if err := got.UnmarshalText([]byte(tt.text)); err != nil || got != tt.budget || got.String() != tt.written {
			t.Errorf("%s: got %v, %v, written %q; want %v, written %q", tt.text, got, err, got.String(), tt.budget, tt.written)
		}
		if err := again.UnmarshalText([]byte(got.String())); err != nil || again != got {
			t.Errorf("%s: got %v, %v; want %v", got.String(), again, err, got)
		}
	}
}

func TestBadBudgetsAreRejected(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"": "is not a deletion budget", "500": "is not a deletion budget", "500/": "is not a deletion budget", "/1h": "is not a deletion budget",
		"many/1h": "is not a deletion budget", "9e99/1h": "is not a deletion budget", "5/hour": "is not a deletion budget", "5/99999d": "is not a deletion budget",
		"5/-1d": "is not a deletion budget", "5/1h/1h": "is not a deletion budget",
		"0/1h": "is for 0 plants: it must be for 1 to 1000000000", "-1/1h": "is for -1 plants", "1000000001/1h": "is for 1000000001 plants",
		"5/0d": "has a period of 0d: it must be at least 1s", "5/999ms": "it must be at least 1s", "5/-1h": "it must be at least 1s",
		"5/8d": "it must be at most 7d", "5/168h0m1s": "it must be at most 7d",
	} {
		if err := new(Budget).UnmarshalText([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want an error: %s", text, err, want)
		}
	}
}

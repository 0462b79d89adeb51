package plant

import (
	"errors"
	"testing"
)

func TestParseID(t *testing.T) {
	t.Parallel()
	good := map[string]ID{
		"0": 0, "1": 1, "-1": -1, "42": 42,
		"9223372036854775807": 1<<63 - 1, "-9223372036854775808": -1 << 63,
	}
	for s, want := range good {
		if got, err := ParseID(s); err != nil || got != want {
			t.Errorf("ParseID(%q) = %d, %v; want %d", s, got, err, want)
		}
	}
	bad := []string{
		"", " ", "+1", "01", "-0", "00", "1.0", "0x1", "1e3", "1_000", "%31", "1/", "1 ", " 1", "-", "--1",
		"9223372036854775808", "-9223372036854775809", "99999999999999999999999999",
		"١", "１", "1\x00", "\x00", "abc", "1;", "1'--",
	}
	for _, s := range bad {
		if got, err := ParseID(s); !errors.Is(err, ErrBadID) {
			t.Errorf("ParseID(%q) = %d, %v; want ErrBadID", s, got, err)
		}
	}
}

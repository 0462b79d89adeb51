package internal_test

import (
	"io/fs"
	"os"
	"regexp"
	"strings"
	"testing"

	"plantstore/internal/readme"
)

// A test that waits for a time fails on a busy machine. Tests wait for events, or run in a
// bubble of testing/synctest.
func TestTestsWaitForEvents(t *testing.T) {
	t.Parallel()
	wait := regexp.MustCompile(`\btime\.(Sleep|After|AfterFunc|Tick|NewTicker|NewTimer)\b|pg_` + `sleep`)
	files := os.DirFS(readme.Top(t))
	err := fs.WalkDir(files, ".", func(name string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(name, "_test.go") {
			return err
		}
		text, err := fs.ReadFile(files, name)
		if found := wait.Find(text); found != nil && !strings.Contains(string(text), `"testing/synctest"`) {
			t.Errorf("%s: %s: wait for an event", name, found)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

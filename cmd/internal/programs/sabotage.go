package programs

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A sabotaged program lacks something that it has for a good reason. Nothing in
// the product knows of it: a build replaces pieces of the source.
const (
	// The checker of cmd/chaos has to catch each of these.

	// ForgetLedger is a service that forgets that an earlier attempt of its own
	// may have been committed.
	ForgetLedger = "forget-ledger"
	// ForgetRefusal is a service that says no without recording it, although an
	// attempt may be open.
	ForgetRefusal = "forget-refusal"
	// ForgetProof is a service that does not look whether a deletion was recorded.
	ForgetProof = "forget-proof"
	// BelieveWarnings is a service that takes a commit for durable that the standby
	// need not have.
	BelieveWarnings = "believe-warnings"

	// OneByOne is a service without group commit: each deletion has a round trip
	// and a commit of its own. cmd/bench shows what a group costs a client that
	// is alone.
	OneByOne = "one-by-one"
)

// An edit replaces a piece of a source file, which has to be there exactly once.
type edit struct {
	file     string // in this module
	old, new string
}

// sabotages returns the edits of each sabotage. When the source changes, this is
// the place to follow it.
func sabotages() map[string][]edit {
	forgetRefusal := edit{"internal/postgres/delete.go", "if !unsure && !d.KeySent {", "if true {"}
	return map[string][]edit{
		ForgetLedger:    {forgetRefusal, {"internal/postgres/statements.go", "coalesce(l.own, false)", "false"}},
		ForgetRefusal:   {forgetRefusal},
		ForgetProof:     {{"internal/postgres/statements.go", "SELECT public.plantstore_prove(", "SELECT pg_catalog.concat("}},
		BelieveWarnings: {{"internal/postgres/statements.go", "err == nil && marks[warned] != nil", "false"}},
		OneByOne:        {{"internal/postgres/delete.go", "what: known.what,", "what: max(known.what, retried),"}},
	}
}

// Sabotages returns the names of all sabotages, sorted.
func Sabotages() []string { return slices.Sorted(maps.Keys(sabotages())) }

// editsOf returns the edits of a sabotage, none for an empty name.
func editsOf(sabotage string) ([]edit, error) {
	edits, ok := sabotages()[sabotage]
	if !ok && sabotage != "" {
		return nil, fmt.Errorf("there is no sabotage %q: want %s", sabotage, strings.Join(Sabotages(), " or "))
	}
	return edits, nil
}

// writeOverlay makes edited copies of files of the module at root in a new folder, and
// those to be added, and returns the path of the file that go build -overlay takes.
func writeOverlay(root, folder string, edits []edit, added map[string]string) (path string, err error) {
	texts := make(map[string]string) // by path of the original
	for _, e := range edits {
		original := filepath.Join(root, e.file)
		text, read := texts[original]
		if !read {
			b, err := os.ReadFile(original)
			if err != nil {
				return "", err
			}
			text = string(b)
		}
		if n := strings.Count(text, e.old); n != 1 {
			return "", fmt.Errorf("%s has the text %q %d times, want once: adapt cmd/internal/programs/sabotage.go", e.file, e.old, n)
		}
		texts[original] = strings.Replace(text, e.old, e.new, 1)
	}
	for file, text := range added {
		path := filepath.Join(root, file)
		if _, err := os.Lstat(path); err == nil {
			return "", fmt.Errorf("%s is there already", file)
		}
		texts[path] = text
	}
	if err := os.Mkdir(folder, 0o700); err != nil {
		return "", err
	}
	var overlay struct{ Replace map[string]string }
	overlay.Replace = make(map[string]string)
	for i, original := range slices.Sorted(maps.Keys(texts)) {
		edited := filepath.Join(folder, strconv.Itoa(i)+filepath.Ext(original))
		if err := os.WriteFile(edited, []byte(texts[original]), 0o600); err != nil {
			return "", err
		}
		overlay.Replace[original] = edited
	}
	b, err := json.Marshal(overlay)
	if err != nil {
		return "", err
	}
	path = filepath.Join(folder, "overlay.json")
	return path, os.WriteFile(path, b, 0o600)
}

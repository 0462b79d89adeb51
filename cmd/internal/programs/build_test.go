package programs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestEverySabotageBuilds fails when the source has changed under a sabotage. It builds the
// edited package only, as the program takes long to link.
func TestEverySabotageBuilds(t *testing.T) {
	t.Parallel()
	for name, edits := range sabotages() {
		if _, err := Build(t.Context(), t.TempDir(), Spec{Package: filepath.Dir(edits[0].file), Sabotage: name}); err != nil {
			t.Errorf("sabotage %q: %v", name, err)
		}
	}
}

// TestChangedSourceIsBuilt proves that the compiler reads the edited file and the added one.
func TestChangedSourceIsBuilt(t *testing.T) {
	t.Parallel()
	edits := []edit{{"internal/plant/plant.go", "type ID int64", "type ID editedSource"}}
	added := map[string]string{"internal/plant/added.go": "package plant\n\nfunc added() { addedSource }"}
	_, err := build(t.Context(), t.TempDir(), Spec{Package: "internal/plant", Name: "changed", Added: added}, edits)
	if err == nil || !strings.Contains(err.Error(), "editedSource") || !strings.Contains(err.Error(), "addedSource") {
		t.Errorf("got error %v, want the compiler's about editedSource and addedSource", err)
	}
}

func TestOverlayHasTheEdits(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "a.go"), []byte("one two two three"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name      string
		edits     []edit
		added     map[string]string
		want, err string
	}{
		{"two edits of a file", []edit{{"a.go", "one", "1"}, {"a.go", "three", "3"}}, nil, "1 two two 3", ""},
		{"text gone", []edit{{"a.go", "one", "1"}, {"a.go", "four", "4"}}, nil, "", `a.go has the text "four" 0 times`},
		{"text twice", []edit{{"a.go", "two", "2"}}, nil, "", `a.go has the text "two" 2 times`},
		{"file gone", []edit{{"b.go", "one", "1"}}, nil, "", "b.go: no such file"},
		{"file there", nil, map[string]string{"a.go": "four"}, "", "a.go is there already"},
	} {
		folder := filepath.Join(t.TempDir(), "overlay")
		_, err := writeOverlay(root, folder, test.edits, test.added)
		if test.err != "" {
			if err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("%s: got error %v, want one with %q", test.name, err, test.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		got, err := os.ReadFile(filepath.Join(folder, "0.go"))
		if err != nil || string(got) != test.want {
			t.Errorf("%s: got %q (%v), want %q", test.name, got, err, test.want)
		}
	}
}

package programs

import (
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

// The compiler's errors show that it reads edited and added files.
func TestChangedSourceIsBuilt(t *testing.T) {
	t.Parallel()
	const file, id = "internal/plant/plant.go", "type ID int64"
	for _, test := range []struct {
		name  string
		edits []edit
		added string // name of a file
		want  []string
	}{
		{"edited twice", []edit{{file, id, "type ID editedOnce"}, {file, "editedOnce", "editedTwice"}}, "", []string{"undefined: editedTwice"}},
		{"edited and added", []edit{{file, id, "type ID edited"}}, "added.go", []string{"undefined: edited", "undefined: added"}},
		{"text gone", []edit{{file, "no such text", ""}}, "", []string{`plant.go has the text "no such text" 0 times`}},
		{"text twice", []edit{{file, id, id + "\n" + id}, {file, id, ""}}, "", []string{`plant.go has the text "type ID int64" 2 times`}},
		{"file there", nil, "plant.go", []string{"plant.go is there already"}},
	} {
		s := Spec{Package: "internal/plant"}
		if test.added != "" {
			s.Added = map[string]string{"internal/plant/" + test.added: "package plant\n\nvar _ added"}
		}
		_, err := build(t.Context(), t.TempDir(), s, test.edits)
		for _, want := range test.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got error %v, want one with %q", test.name, err, want)
			}
		}
	}
}

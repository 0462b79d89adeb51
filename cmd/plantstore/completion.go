package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

type completionCommand struct{}

// completionScript asks the program for the words, so it fits every version. zsh reads it
// after bashcompinit.
const completionScript = `if [ -n "${ZSH_VERSION-}" ]; then autoload -U +X bashcompinit && bashcompinit; fi
_plantstore() {
    COMPREPLY=($(compgen -W "$("$1" complete -- "${COMP_WORDS[@]:1:COMP_CWORD-1}" 2>/dev/null)" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _plantstore plantstore
`

// Run prints the script.
func (c *completionCommand) Run(console *console) error {
	_, err := fmt.Fprint(console.out, completionScript)
	return err
}

type completeCommand struct {
	Words []string `arg:"" optional:"" help:"The words so far, without the one to complete."`
}

// Run prints the words that may come next, a line each.
func (c *completeCommand) Run(app *kong.Context, console *console) error {
	node := app.Model.Node
	for _, word := range c.Words {
		for _, child := range node.Children {
			if child.Name == word {
				node = child
			}
		}
	}
	var words []string
	for _, child := range node.Children {
		if !child.Hidden {
			words = append(words, child.Name)
		}
	}
	for _, flag := range slices.Concat(node.Flags, app.Model.Flags) {
		if !flag.Hidden {
			words = append(words, "--"+flag.Name)
		}
	}
	_, err := fmt.Fprintln(console.out, strings.Join(words, "\n"))
	return err
}

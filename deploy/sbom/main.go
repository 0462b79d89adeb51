// Command sbom writes a software bill of materials of a Go program, as CycloneDX JSON. It
// reads the list of modules that the linker put into the program. So it needs no network,
// and lists nothing that only tests use.
package main

import (
	"debug/buildinfo"
	"fmt"
	"os"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("usage: sbom PROGRAM VERSION >FILE")
	}
	program, version := args[0], args[1]
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return err
	}
	bom := cyclonedx.NewBOM()
	bom.Metadata = &cyclonedx.Metadata{Component: &cyclonedx.Component{
		BOMRef: info.Path, Type: cyclonedx.ComponentTypeApplication, Name: info.Path, Version: version,
	}}
	toolchain := component("std", info.GoVersion)
	components, refs := []cyclonedx.Component{toolchain}, []string{toolchain.BOMRef}
	for _, module := range info.Deps {
		if module.Replace != nil {
			module = module.Replace
		}
		c := component(module.Path, module.Version)
		components, refs = append(components, c), append(refs, c.BOMRef)
	}
	bom.Components = &components
	bom.Dependencies = &[]cyclonedx.Dependency{{Ref: info.Path, Dependencies: &refs}}
	encoder := cyclonedx.NewBOMEncoder(os.Stdout, cyclonedx.BOMFileFormatJSON)
	return encoder.SetPretty(true).Encode(bom)
}

// component is a module of Go's.
func component(path, version string) cyclonedx.Component {
	purl := "pkg:golang/" + path + "@" + version
	return cyclonedx.Component{BOMRef: purl, Type: cyclonedx.ComponentTypeLibrary, Name: path, Version: version, PackageURL: purl}
}

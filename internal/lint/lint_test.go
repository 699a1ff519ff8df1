package lint

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/holdfast-dev/holdfast"

// pkg is what go list says of a package.
type pkg struct {
	ImportPath string
	Dir        string
	GoFiles    []string
	Imports    []string
}

// name returns the path of the package within the module.
func (p pkg) name() string { return strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/") }

func packages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Dir,GoFiles,Imports", module+"/...")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []pkg
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

// kinds of packages, by their place in the house.
func kind(name string) string {
	first, rest, _ := strings.Cut(name, "/")
	switch {
	case name == "kv", name == "kv/key", name == "blob", name == "clock", name == "metrics":
		return "contract"
	case strings.HasSuffix(first, "test") || strings.HasSuffix(name, "test"):
		return "test"
	case first == "kv" || first == "blob":
		return "driver"
	case first == "api":
		return "door " + strings.SplitN(rest, "/", 2)[0]
	case first == "cmd":
		return "command"
	case first == "internal", first == "e2e":
		return "test"
	case (first == "publish" || first == "reconcile") && rest != "":
		return "adapter" // of a layer to the services around it
	}
	return "layer"
}

// mayImport says whether a package of one kind may import one of another.
func mayImport(from, to string) bool {
	switch {
	case from == "command" || from == "test":
		return true
	case to == "contract":
		return true
	case from == "contract" || from == "driver":
		return false
	case to == "layer":
		return true
	case from == "adapter":
		return to == "adapter"
	case strings.HasPrefix(from, "door"):
		return to == from
	}
	return false // a layer imports no driver, no door, no command, no test package
}

func TestPackagesImportOnlyWhatTheyMayKnow(t *testing.T) {
	for _, p := range packages(t) {
		from := kind(p.name())
		for _, imp := range p.Imports {
			to, ours := strings.CutPrefix(imp, module+"/")
			if ours && !mayImport(from, kind(to)) {
				t.Errorf("%s (%s) imports %s (%s)", p.name(), from, to, kind(to))
			}
		}
	}
}

func TestContractsImportOnlyTheStandardLibraryAndTheClock(t *testing.T) {
	contracts := []string{"kv", "kv/key", "blob", "clock"}
	for _, p := range packages(t) {
		if !slices.Contains(contracts, p.name()) {
			continue
		}
		for _, imp := range p.Imports {
			if strings.Contains(imp, ".") && imp != module+"/clock" {
				t.Errorf("%s imports %s", p.name(), imp)
			}
		}
	}
}

// forbidden are calls that hide what a package depends on.
var forbidden = map[string][]string{
	"time":    {"Now", "Since", "Until"},
	"context": {"Background", "TODO"},
	"os":      {"Getenv", "LookupEnv", "Environ", "Exit"},
	"fmt":     {"Print", "Println", "Printf"},
	"log":     {"Print", "Println", "Printf", "Fatal", "Fatalf", "Panic", "Panicf"},
}

func TestNothingAmbientBelowTheCommands(t *testing.T) {
	for _, p := range packages(t) {
		k := kind(p.name())
		if k == "command" || k == "test" {
			continue
		}
		for _, file := range p.GoFiles {
			checkFile(t, p, filepath.Join(p.Dir, file))
		}
	}
}

func checkFile(t *testing.T, p pkg, path string) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution|parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	imported := map[string]string{}
	for _, imp := range f.Imports {
		path, _ := strconv.Unquote(imp.Path.Value)
		name := path[strings.LastIndexByte(path, '/')+1:]
		if imp.Name != nil {
			name = imp.Name.Name
		}
		imported[name] = path
		if path == "math/rand" {
			t.Errorf("%s imports math/rand: chance comes from an injected source", relative(fset, imp.Pos()))
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			x, ok := n.X.(*ast.Ident)
			if !ok || !slices.Contains(forbidden[imported[x.Name]], n.Sel.Name) {
				break
			}
			if p.name() == "clock" {
				break
			}
			t.Errorf("%s uses %s.%s", relative(fset, n.Pos()), x.Name, n.Sel.Name)
		case *ast.FuncDecl:
			if n.Name.Name == "init" && n.Recv == nil {
				t.Errorf("%s: an init function", relative(fset, n.Pos()))
			}
			if n.Recv == nil && n.Name.IsExported() && n.Doc == nil {
				t.Errorf("%s: %s has no comment", relative(fset, n.Pos()), n.Name.Name)
			}
		}
		return true
	})
}

func relative(fset *token.FileSet, pos token.Pos) string {
	p := fset.Position(pos)
	return fmt.Sprintf("%s:%d", filepath.Join(filepath.Base(filepath.Dir(p.Filename)), filepath.Base(p.Filename)), p.Line)
}

func TestEveryPackageHasADocComment(t *testing.T) {
	for _, p := range packages(t) {
		documented := false
		for _, file := range p.GoFiles {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, file), nil, parser.PackageClauseOnly|parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			documented = documented || f.Doc != nil
		}
		if !documented && len(p.GoFiles) > 0 {
			t.Errorf("package %s has no doc comment", p.name())
		}
	}
}

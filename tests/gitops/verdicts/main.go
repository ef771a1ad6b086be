// Prints what kstatus computes for each object of a JSON list, and what Argo CD's own evaluator makes
// of a script of health: status, tab, health, tab, message. Usage: verdicts SCRIPT < OBJECTS
package main

import (
	"fmt"
	"io"
	"log"
	"os"

	"github.com/argoproj/argo-cd/v3/util/lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

func main() {
	script := string(must(os.ReadFile(os.Args[1])))
	// Not encoding/json: kstatus reads integers as int64, and would refuse a generation of float64.
	var objects []map[string]interface{}
	if err := json.Unmarshal(must(io.ReadAll(os.Stdin)), &objects); err != nil {
		log.Fatal(err)
	}
	for _, each := range objects {
		object := &unstructured.Unstructured{Object: each}
		computed := must(status.Compute(object))
		health := must(lua.VM{}.ExecuteHealthLua(object, script))
		fmt.Printf("%s\t%s\t%s\n", computed.Status, health.Status, health.Message)
	}
}

func must[Value any](value Value, err error) Value {
	if err != nil {
		log.Fatal(err)
	}
	return value
}

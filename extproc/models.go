package extproc

import (
	"fmt"
	"slices"

	"github.com/weirproxy/weir/admission"
)

// defaultModel is the model of a call whose body names none: the API's, else
// the first that the route and the caller's rights allow.
func (c *conversation) defaultModel() (string, *refusal) {
	k := &c.call
	if name := k.api.Model; name != "" {
		return c.resolve(name)
	}
	for i := range k.effective.Policy.Models {
		if name := k.effective.Policy.Models[i].Name; c.open(name) {
			return name, nil
		}
	}
	return "", refuse(admission.ModelDenied, "")
}

// resolve finds the policy's name of a model that was asked for, and holds it
// against the route, the tenant's rule and the caller's scopes.
func (c *conversation) resolve(name string) (string, *refusal) {
	k := &c.call
	model, ok := k.effective.Model(name)
	if !ok {
		return "", &refusal{reason: admission.ModelUnknown, detail: fmt.Sprintf("The request names %q.", clip(name)), param: "model"}
	}
	if !k.identity.ModelAllowed(name) || !c.tenantMay(model.Name) {
		return "", &refusal{reason: admission.ModelDenied, detail: fmt.Sprintf("The request names %q.", clip(name)), param: "model"}
	}
	return model.Name, nil
}

// open reports whether a model, by its own name, is open to the caller here.
func (c *conversation) open(name string) bool {
	k := &c.call
	return k.effective.Allows(name) && k.identity.ModelAllowed(name) && c.tenantMay(name)
}

// tenantMay holds a model against the policy's rule for the tenant.
func (c *conversation) tenantMay(name string) bool {
	t := c.call.rule
	return t == nil || len(t.Models) == 0 || slices.Contains(t.Models, name)
}

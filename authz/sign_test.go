package authz

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"encoding/json"
	"testing"
)

func TestSignerAndKeys(t *testing.T) {
	for _, alg := range signing {
		if alg == "RS384" || alg == "RS512" || alg == "PS384" || alg == "PS512" {
			continue // the same key as RS256; slow to make
		}
		k := keyPair(t, alg, "gen")
		if k.signer.alg != alg || k.public["alg"] != alg || k.public["use"] != "sig" || k.public["kid"] != "gen" {
			t.Errorf("%s: %+v", alg, k.public)
		}
		if _, private := k.public["d"]; private {
			t.Errorf("%s: the public set holds the private key", alg)
		}
		switch k.signer.key.(type) {
		case ed25519.PrivateKey, *ecdsa.PrivateKey, *rsa.PrivateKey:
		default:
			t.Errorf("%s: key %T", alg, k.signer.key)
		}
	}
	private, set, err := GenerateKey("EdDSA", "")
	if err != nil {
		t.Fatal(err)
	}
	doc, _ := decodeObject(set)
	if kid, _ := doc["keys"].([]any)[0].(map[string]any)["kid"].(string); len(kid) != 43 {
		t.Errorf("kid %q is no SHA-256 thumbprint", kid)
	}
	if _, err := NewSigner(private, "ES256"); err == nil {
		t.Error("an Ed25519 key signs no ES256")
	}
	public, _ := json.Marshal(doc["keys"].([]any)[0])
	for name, data := range map[string][]byte{"public": public, "empty": nil, "set": set, "oct": []byte(`{"kty":"oct","k":"AAAA","d":"x"}`)} {
		if _, err := NewSigner(data, ""); err == nil {
			t.Errorf("%s taken for a private key", name)
		}
	}
	if _, _, err := GenerateKey("HS256", ""); err == nil {
		t.Error("HS256 key made")
	}
}

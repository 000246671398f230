package dashboard

// The part of Grafana's dashboard model that is used, by its names in JSON.
type model struct {
	UID           string   `json:"uid"`
	Title         string   `json:"title"`
	Description   string   `json:"description"`
	Tags          []string `json:"tags"`
	SchemaVersion int      `json:"schemaVersion"`
	Version       int      `json:"version"`
	Editable      bool     `json:"editable"`
	GraphTooltip  int      `json:"graphTooltip"` // 1 = one crosshair over all panels
	Refresh       string   `json:"refresh"`
	Time          span     `json:"time"`
	Timezone      string   `json:"timezone"`
	Annotations   list     `json:"annotations"`
	Links         []any    `json:"links"`
	Templating    list     `json:"templating"`
	Panels        []panel  `json:"panels"`
}

type span struct {
	From string `json:"from"`
	To   string `json:"to"`
}

type list struct {
	List []any `json:"list"`
}

type source struct {
	Type string `json:"type"`
	UID  string `json:"uid"`
}

// chosen is the data source that the user chose.
func chosen() *source { return &source{"prometheus", "${datasource}"} }

type variable struct {
	Name     string         `json:"name"`
	Label    string         `json:"label"`
	Type     string         `json:"type"`
	Source   *source        `json:"datasource,omitempty"`
	Query    any            `json:"query"`
	Hide     int            `json:"hide"`
	Refresh  int            `json:"refresh,omitempty"` // 2 = when the time range changes
	Sort     int            `json:"sort,omitempty"`
	Multi    bool           `json:"multi"`
	All      bool           `json:"includeAll"`
	AllValue string         `json:"allValue,omitempty"`
	Current  map[string]any `json:"current,omitempty"`
}

type labelQuery struct {
	Type  int    `json:"qryType"` // 1 = values of a label
	Query string `json:"query"`
	ID    string `json:"refId"`
}

type panel struct {
	ID          int            `json:"id"`
	Type        string         `json:"type"`
	Title       string         `json:"title"`
	Description string         `json:"description,omitempty"`
	Place       place          `json:"gridPos"`
	Source      *source        `json:"datasource,omitempty"`
	Targets     []target       `json:"targets,omitempty"`
	Fields      *fieldConfig   `json:"fieldConfig,omitempty"`
	Options     map[string]any `json:"options,omitempty"`
	Collapsed   *bool          `json:"collapsed,omitempty"` // of rows
	Panels      []any          `json:"panels,omitzero"`     // of rows
}

type place struct {
	H int `json:"h"`
	W int `json:"w"`
	X int `json:"x"`
	Y int `json:"y"`
}

type target struct {
	ID     string  `json:"refId"`
	Source *source `json:"datasource"`
	Expr   string  `json:"expr"`
	Legend string  `json:"legendFormat"`
	Editor string  `json:"editorMode"`
	Range  bool    `json:"range"`
}

type fieldConfig struct {
	Defaults  fields `json:"defaults"`
	Overrides []any  `json:"overrides"`
}

type fields struct {
	Unit     string         `json:"unit,omitempty"`
	Min      *float64       `json:"min,omitempty"`
	Max      *float64       `json:"max,omitempty"`
	Mappings []any          `json:"mappings,omitempty"`
	Custom   map[string]any `json:"custom"`
}

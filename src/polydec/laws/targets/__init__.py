"""Laws made of laws: shaped, contrasted, of some layers, behind another prompt."""

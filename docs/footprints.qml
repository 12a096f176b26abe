<!DOCTYPE qgis PUBLIC 'http://mrcc.com/qgis.dtd' 'SYSTEM'>
<!-- Footprints by cloud cover, clear scenes dark; for QGIS 3.22 and later. -->
<qgis version="3.22" styleCategories="Symbology|MapTips">
  <renderer-v2 type="RuleRenderer" symbollevels="0" forceraster="0">
    <rules>
      <rule symbol="0" label="0 to 20 % cloud" filter="&quot;cloud_cover_pct&quot; &gt;= 0 AND &quot;cloud_cover_pct&quot; &lt; 20"/>
      <rule symbol="1" label="20 to 40 % cloud" filter="&quot;cloud_cover_pct&quot; &gt;= 20 AND &quot;cloud_cover_pct&quot; &lt; 40"/>
      <rule symbol="2" label="40 to 60 % cloud" filter="&quot;cloud_cover_pct&quot; &gt;= 40 AND &quot;cloud_cover_pct&quot; &lt; 60"/>
      <rule symbol="3" label="60 to 80 % cloud" filter="&quot;cloud_cover_pct&quot; &gt;= 60 AND &quot;cloud_cover_pct&quot; &lt; 80"/>
      <rule symbol="4" label="80 to 100 % cloud" filter="&quot;cloud_cover_pct&quot; &gt;= 80 AND &quot;cloud_cover_pct&quot; &lt;= 100"/>
      <rule symbol="5" label="no cloud cover given" filter="&quot;cloud_cover_pct&quot; IS NULL"/>
    </rules>
    <symbols>
      <symbol type="fill" name="0" alpha="1">
        <layer class="SimpleFill" enabled="1" locked="0" pass="0">
          <Option type="Map">
            <Option name="color" type="QString" value="8,104,172,110"/>
            <Option name="outline_color" type="QString" value="28,39,51,255"/>
            <Option name="outline_width" type="QString" value="0.2"/>
            <Option name="style" type="QString" value="solid"/>
          </Option>
        </layer>
      </symbol>
      <symbol type="fill" name="1" alpha="1">
        <layer class="SimpleFill" enabled="1" locked="0" pass="0">
          <Option type="Map">
            <Option name="color" type="QString" value="67,162,202,110"/>
            <Option name="outline_color" type="QString" value="28,39,51,255"/>
            <Option name="outline_width" type="QString" value="0.2"/>
            <Option name="style" type="QString" value="solid"/>
          </Option>
        </layer>
      </symbol>
      <symbol type="fill" name="2" alpha="1">
        <layer class="SimpleFill" enabled="1" locked="0" pass="0">
          <Option type="Map">
            <Option name="color" type="QString" value="123,204,196,110"/>
            <Option name="outline_color" type="QString" value="28,39,51,255"/>
            <Option name="outline_width" type="QString" value="0.2"/>
            <Option name="style" type="QString" value="solid"/>
          </Option>
        </layer>
      </symbol>
      <symbol type="fill" name="3" alpha="1">
        <layer class="SimpleFill" enabled="1" locked="0" pass="0">
          <Option type="Map">
            <Option name="color" type="QString" value="186,228,188,110"/>
            <Option name="outline_color" type="QString" value="28,39,51,255"/>
            <Option name="outline_width" type="QString" value="0.2"/>
            <Option name="style" type="QString" value="solid"/>
          </Option>
        </layer>
      </symbol>
      <symbol type="fill" name="4" alpha="1">
        <layer class="SimpleFill" enabled="1" locked="0" pass="0">
          <Option type="Map">
            <Option name="color" type="QString" value="240,249,232,140"/>
            <Option name="outline_color" type="QString" value="28,39,51,255"/>
            <Option name="outline_width" type="QString" value="0.2"/>
            <Option name="style" type="QString" value="solid"/>
          </Option>
        </layer>
      </symbol>
      <symbol type="fill" name="5" alpha="1">
        <layer class="SimpleFill" enabled="1" locked="0" pass="0">
          <Option type="Map">
            <Option name="color" type="QString" value="140,140,140,60"/>
            <Option name="outline_color" type="QString" value="28,39,51,255"/>
            <Option name="outline_width" type="QString" value="0.2"/>
            <Option name="style" type="QString" value="solid"/>
          </Option>
        </layer>
      </symbol>
    </symbols>
  </renderer-v2>
  <mapTip>&lt;b&gt;[% "item_id" %]&lt;/b&gt;&lt;br&gt;[% "acquired_at" %]&lt;br&gt;[% "cloud_cover_pct" %] % cloud</mapTip>
</qgis>
